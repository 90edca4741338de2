/* Threads that compute the parts of a step together.
 *
 * A step has hundreds of parts of some microseconds, so members that wait for each other within it spin; between steps
 * they sleep. OpenMP's do neither for sure: they spin after every part, or sleep within the step as soon as another pool
 * of the process has as many threads as there are cores.
 */

#define _GNU_SOURCE
#include "kernels.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPINS = 20000 }; /* before others get the core, about 200 microseconds */

struct team {
    long size;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t has_turn;
    unsigned long num_turns; /* like the three below, behind the lock */
    int is_over;
    void (*work)(const struct member *, void *);
    void *what;
    _Alignas(64) atomic_long num_arrived;
    _Alignas(64) atomic_ulong num_meetings;
    _Alignas(64) atomic_long next;
};

void meet(const struct member *me) {
    struct team *team = me->team;
    const unsigned long before = atomic_load(&team->num_meetings);
    if (atomic_fetch_add(&team->num_arrived, 1) == team->size - 1) {
        atomic_store(&team->num_arrived, 0);
        atomic_store(&team->next, 0);
        atomic_store(&team->num_meetings, before + 1);
        return;
    }
    for (long spins = 0; atomic_load(&team->num_meetings) == before; spins++) {
#ifdef __x86_64__
        _mm_pause();
#endif
        if (spins >= SPINS) sched_yield();
    }
}

long team_size(const struct member *me) { return me->team->size; }

long next_item(const struct member *me) { return atomic_fetch_add(&me->team->next, 1); }

struct range share_of(const struct member *me, long count) {
    return (struct range){count * me->index / me->team->size, count * (me->index + 1) / me->team->size};
}

static void *serve(void *given) {
    const struct member me = *(struct member *)given;
    free(given);
    struct team *team = me.team;
    for (unsigned long num_done = 0;; num_done++) {
        pthread_mutex_lock(&team->lock);
        while (team->num_turns == num_done && !team->is_over) pthread_cond_wait(&team->has_turn, &team->lock);
        const int is_over = team->is_over;
        pthread_mutex_unlock(&team->lock);
        if (is_over) return NULL;
        team->work(&me, team->what);
        meet(&me);
    }
}

/* The caller is one of its `size` members whenever it runs. Returns NULL where the system gives no more threads. */
struct team *new_team(long size) {
    struct team *team = aligned_alloc(64, (sizeof *team + 63) / 64 * 64);
    if (team == NULL) return NULL;
    memset(team, 0, sizeof *team);
    team->size = 1;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->has_turn, NULL);
    team->threads = calloc((size_t)size, sizeof *team->threads);
    for (long index = 1; index < size && team->threads != NULL; index++) {
        struct member *member = malloc(sizeof *member);
        if (member == NULL) break;
        *member = (struct member){team, index};
        if (pthread_create(&team->threads[index], NULL, serve, member) != 0) {
            free(member);
            break;
        }
        team->size = index + 1; /* nobody reads it before the first turn */
    }
    return team;
}

/* Ends its threads; nothing may run any more. */
void end_team(struct team *team) {
    pthread_mutex_lock(&team->lock);
    team->is_over = 1;
    pthread_cond_broadcast(&team->has_turn);
    pthread_mutex_unlock(&team->lock);
    for (long index = 1; index < team->size; index++) pthread_join(team->threads[index], NULL);
    free(team->threads);
    free(team);
}

/* Returns when every member has done `work`. */
void run_team(struct team *team, void (*work)(const struct member *, void *), void *what) {
    const struct member me = {team, 0};
    if (team->size > 1) {
        pthread_mutex_lock(&team->lock);
        team->work = work;
        team->what = what;
        team->num_turns++;
        pthread_cond_broadcast(&team->has_turn);
        pthread_mutex_unlock(&team->lock);
    }
    work(&me, what);
    meet(&me);
}
