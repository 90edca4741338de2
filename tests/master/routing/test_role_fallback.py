"""R25: any engine serves rather than nobody, but a cluster that starts waits for its roles."""

from master.routing.role_fallback import RoleFallback, Roles


def test_a_cluster_that_starts_waits_for_its_roles() -> None:
    fallback = RoleFallback(grace_s=30.0)
    assert not fallback.observe(0.0, has_workers=False, is_whole=False)
    assert fallback.next_change_s() is None
    assert not fallback.observe(100.0, has_workers=True, is_whole=False)
    assert (fallback.roles, fallback.next_change_s()) == (Roles.STARTING, 130.0)
    assert not fallback.observe(129.0, has_workers=True, is_whole=True)
    assert fallback.roles is Roles.WHOLE


def test_it_does_not_wait_for_ever() -> None:
    fallback = RoleFallback(grace_s=30.0)
    fallback.observe(0.0, has_workers=True, is_whole=False)
    assert fallback.observe(30.0, has_workers=True, is_whole=False)
    assert (fallback.roles, fallback.next_change_s()) == (Roles.FALLEN_BACK, None)


def test_a_role_that_is_lost_is_made_up_for_at_once_and_said_once() -> None:
    fallback = RoleFallback(grace_s=30.0)
    fallback.observe(0.0, has_workers=True, is_whole=True)
    assert fallback.observe(1.0, has_workers=True, is_whole=False)
    assert not fallback.observe(2.0, has_workers=True, is_whole=False)
    assert fallback.observe(3.0, has_workers=True, is_whole=True)
    assert not fallback.observe(4.0, has_workers=True, is_whole=True)


def test_nobody_is_no_fallback() -> None:
    fallback = RoleFallback(grace_s=0.0)
    fallback.observe(0.0, has_workers=True, is_whole=True)
    assert not fallback.observe(1.0, has_workers=False, is_whole=False)
    assert fallback.roles is Roles.WHOLE
    assert fallback.observe(2.0, has_workers=True, is_whole=False)
