import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.address import Address, free_of_wildcard, join_host_port, parse_address, parse_addresses, split_host_port

hosts = st.ip_addresses().map(str) | st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)


@given(hosts, st.integers(0, 65535))
def test_split_undoes_join(host: str, port: int) -> None:
    assert split_host_port(join_host_port(host, port)) == (host, port)


@given(st.text(alphabet="[]:.0123456789abc/ ", max_size=30))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError as error:
        assert str(error)
    else:
        assert parse_address(str(address)) == address


def test_ipv6_is_written_in_brackets() -> None:
    assert parse_address("[::1]:2379") == Address("::1", 2379)
    assert str(Address("::1", 2379)) == "[::1]:2379"
    assert parse_address("[fe80::1%eth0]:1") == Address("fe80::1%eth0", 1)


def test_a_list_keeps_its_order() -> None:
    assert parse_addresses("etcd-0:2379, 10.0.0.2:2379,[::1]:0") == (
        Address("etcd-0", 2379),
        Address("10.0.0.2", 2379),
        Address("::1", 0),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("a:1,,b:2", "empty"),
        ("http://a:1", "scheme"),
        ("a", "has no port; write a:port"),
        ("a:", "no port after the colon"),
        (":1", "no host"),
        ("a:b", "not a number: 'b'"),
        ("a:-1", "not a number"),
        ("a:65536", "ports end at 65535"),
        ("a:٣", "not a number"),
        ("::1", "without brackets"),
        ("fe80::1:2379x", r"write \[fe80::1\]:2379x"),
        ("fe80::x:2379", "no valid host name"),
        ("2001:db8:0:0:0:0:0:1:80", "without brackets"),
        ("[::1]", r"write \[::1\]:port"),
        ("[::1:80", "closing bracket"),
        ("[a]:1", "no IPv6 address in its brackets"),
        ("a b:1", "no valid host name"),
    ],
)
def test_the_error_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_addresses(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "worker-3.cluster", "10.1.2.3"])
def test_a_host_that_is_no_wildcard_is_advertised_as_it_is(host: str) -> None:
    assert free_of_wildcard(host) == host


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "0:0:0:0:0:0:0:0"])
def test_a_wildcard_is_never_advertised(host: str) -> None:
    assert not ipaddress.ip_address(free_of_wildcard(host)).is_unspecified
