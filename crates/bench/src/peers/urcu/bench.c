/*
 * The liburcu peer: what rcu-read, rcu-sync, rcu-poll and defer-free measure, for three of its flavours, with
 * the readers inlined as its LGPL users have them. Built at run time against the installed library.
 */
#include "worker.h"

#define _LGPL_SOURCE
#define URCU_INLINE_SMALL_FUNCTIONS
#include <stddef.h>
#include <stdlib.h>
#include <urcu/urcu-memb.h>
#include <urcu/urcu-qsbr.h>
#include <urcu/urcu-bp.h>
#if __has_include(<urcu/urcu-poll.h>)
#define HAVE_POLL 1
#endif

static uint64_t word = 7, *shared = &word;

static inline void section(void)
{
	uint64_t *at = __atomic_load_n(&shared, __ATOMIC_ACQUIRE), value = *at;
	KEEP(value);
}

/* ---- readers ---- */

static void memb_read(uint64_t n)
{
	urcu_memb_register_thread();
	for (uint64_t i = 0; i < n; i++) {
		urcu_memb_read_lock();
		section();
		urcu_memb_read_unlock();
	}
	urcu_memb_unregister_thread();
}

static void bp_read(uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		urcu_bp_read_lock();
		section();
		urcu_bp_read_unlock();
	}
}

static void qsbr_read(uint64_t n)
{
	urcu_qsbr_register_thread();
	for (uint64_t i = 0; i < n; i++) {
		urcu_qsbr_read_lock();
		section();
		urcu_qsbr_read_unlock();
		urcu_qsbr_quiescent_state();
	}
	urcu_qsbr_unregister_thread();
}

static void qsbr_read_64(uint64_t n)
{
	urcu_qsbr_register_thread();
	for (uint64_t i = 0; i < n; i += 64) {
		for (uint64_t j = 0; j < 64; j++) {
			urcu_qsbr_read_lock();
			section();
			urcu_qsbr_read_unlock();
		}
		urcu_qsbr_quiescent_state();
	}
	urcu_qsbr_unregister_thread();
}

static void qsbr_notify(uint64_t n)
{
	urcu_qsbr_register_thread();
	urcu_qsbr_thread_offline();
	for (uint64_t i = 0; i < n; i++) {
		urcu_qsbr_thread_online();
		section();
		urcu_qsbr_thread_offline();
	}
	urcu_qsbr_unregister_thread();
}

/* ---- grace periods ---- */

struct flavour {
	void (*enter_thread)(void), (*leave_thread)(void);
	void (*lock)(void), (*unlock)(void), (*idle)(void), (*sync)(void);
};

static void nothing(void)
{
}

static void qsbr_idle(void)
{
	urcu_qsbr_thread_offline();
}

static void qsbr_lock(void)
{
	urcu_qsbr_thread_online();
}

static void memb_lock(void)
{
	urcu_memb_read_lock();
}

static void memb_unlock(void)
{
	urcu_memb_read_unlock();
}

static void bp_lock(void)
{
	urcu_bp_read_lock();
}

static void bp_unlock(void)
{
	urcu_bp_read_unlock();
}

/* A bp thread is registered by its first section. */
static void bp_enter(void)
{
	urcu_bp_read_lock();
	urcu_bp_read_unlock();
}

static const struct flavour memb = {
	urcu_memb_register_thread, urcu_memb_unregister_thread, memb_lock, memb_unlock, nothing,
	urcu_memb_synchronize_rcu,
};
static const struct flavour qsbr = {
	urcu_qsbr_register_thread, urcu_qsbr_unregister_thread, qsbr_lock, qsbr_idle, qsbr_idle,
	urcu_qsbr_synchronize_rcu,
};
static const struct flavour bp = {
	bp_enter, nothing, bp_lock, bp_unlock, nothing, urcu_bp_synchronize_rcu,
};

/* The updater of qsbr is registered, too, and offline: its synchronize sees to that. */
static void sync_loop(const struct flavour *f, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		f->sync();
}

static void memb_sync(uint64_t n)
{
	sync_loop(&memb, n);
}

static void qsbr_sync(uint64_t n)
{
	sync_loop(&qsbr, n);
}

static void bp_sync(uint64_t n)
{
	sync_loop(&bp, n);
}

#define PARKED 8

static struct {
	const struct flavour *f;
	int stop, ready, go;
	uint64_t hold_ns, left;
	pthread_mutex_t lock;
	pthread_cond_t wake;
} shape = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };

static int get(int *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static void set(int *at, int value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
}

/* Registered, and asleep until told to end. */
static void *parked(void *arg)
{
	pin(1);
	shape.f->enter_thread();
	shape.f->idle();
	__atomic_add_fetch(&shape.ready, 1, __ATOMIC_RELEASE);
	pthread_mutex_lock(&shape.lock);
	while (!shape.stop)
		pthread_cond_wait(&shape.wake, &shape.lock);
	pthread_mutex_unlock(&shape.lock);
	shape.f->leave_thread();
	return arg;
}

/* Sections without pause on the other CPU. */
static void *busy(void *arg)
{
	const struct flavour *f = shape.f;
	pin(1);
	f->enter_thread();
	set(&shape.ready, 1);
	if (f == &qsbr) {
		while (!get(&shape.stop)) {
			section();
			urcu_qsbr_quiescent_state();
		}
	} else {
		while (!get(&shape.stop)) {
			f->lock();
			section();
			f->unlock();
		}
	}
	f->leave_thread();
	return arg;
}

/* One section for each round, held for as long as told. */
static void *holder(void *arg)
{
	const struct flavour *f = shape.f;
	uint64_t until;
	pin(1);
	f->enter_thread();
	f->idle();
	for (int round = 1;; round++) {
		while (get(&shape.go) != round)
			if (get(&shape.stop)) {
				f->leave_thread();
				return arg;
			}
		f->lock();
		until = now(CLOCK_MONOTONIC) + shape.hold_ns;
		set(&shape.ready, round);
		while (now(CLOCK_MONOTONIC) < until)
			section();
		shape.left = now(CLOCK_MONOTONIC);
		f->unlock();
		set(&shape.go, 0);
	}
}

/* Tells the threads to end and waits for them. */
static void end(pthread_t *ids, size_t count)
{
	pthread_mutex_lock(&shape.lock);
	set(&shape.stop, 1);
	pthread_cond_broadcast(&shape.wake);
	pthread_mutex_unlock(&shape.lock);
	for (size_t i = 0; i < count; i++)
		pthread_join(ids[i], NULL);
}

/* BATCHES of BATCH each -> CPU and wall nanoseconds of each batch. */
static size_t timed(const struct flavour *f, uint64_t batches, uint64_t batch, uint64_t *out)
{
	for (uint64_t i = 0; i < batches && 2 * i + 2 <= MAX_NUMBERS; i++) {
		uint64_t cpu = now(CLOCK_THREAD_CPUTIME_ID), wall = now(CLOCK_MONOTONIC);
		sync_loop(f, batch);
		out[2 * i + 1] = now(CLOCK_MONOTONIC) - wall;
		out[2 * i] = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
	}
	return 2 * batches;
}

/* With THREADS threads beside it. */
static size_t with(const struct flavour *f, void *(*thread)(void *), int threads, uint64_t *numbers)
{
	uint64_t batches = numbers[0], batch = numbers[1];
	pthread_t ids[PARKED];
	shape.f = f;
	shape.stop = shape.ready = 0;
	for (int i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, thread, NULL);
	pin(0);
	while (get(&shape.ready) < (thread == busy ? 1 : threads))
		;
	usleep(1000);
	size_t count = timed(f, batches, batch, numbers);
	end(ids, threads);
	return count;
}

/* ROUNDS, HOLD_NS -> nanoseconds from the reader's exit to the return, of each round. */
static size_t leave(const struct flavour *f, uint64_t *numbers)
{
	uint64_t rounds = numbers[0];
	pthread_t id;
	shape.f = f;
	shape.stop = shape.ready = shape.go = 0;
	shape.hold_ns = numbers[1];
	pthread_create(&id, NULL, holder, NULL);
	pin(0);
	for (uint64_t i = 0; i < rounds; i++) {
		set(&shape.go, (int)i + 1);
		while (get(&shape.ready) != (int)i + 1)
			;
		f->sync();
		uint64_t back = now(CLOCK_MONOTONIC);
		while (get(&shape.go) != 0)
			;
		numbers[i] = back - shape.left;
	}
	end(&id, 1);
	return rounds;
}

#define CALLS(f) \
static size_t f##_parked(uint64_t *numbers, size_t count) \
{ \
	return count == 2 ? with(&f, parked, PARKED, numbers) : 0; \
} \
static size_t f##_busy(uint64_t *numbers, size_t count) \
{ \
	return count == 2 ? with(&f, busy, 1, numbers) : 0; \
} \
static size_t f##_leave(uint64_t *numbers, size_t count) \
{ \
	return count == 2 ? leave(&f, numbers) : 0; \
}
CALLS(memb)
CALLS(qsbr)
CALLS(bp)

/* ---- polling ---- */

#ifdef HAVE_POLL
static void memb_poll(uint64_t n)
{
	struct urcu_gp_poll_state cookie = urcu_memb_start_poll_synchronize_rcu();
	while (!urcu_memb_poll_state_synchronize_rcu(cookie))
		usleep(100);
	for (uint64_t i = 0; i < n; i++) {
		int done = urcu_memb_poll_state_synchronize_rcu(cookie);
		KEEP(done);
	}
}

static void memb_start_poll(uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		struct urcu_gp_poll_state cookie = urcu_memb_start_poll_synchronize_rcu();
		KEEP(cookie.grace_period_id);
	}
}
#endif

/* ---- call_rcu: the same run as in defer_free.rs ---- */

struct object {
	struct rcu_head head;
	uint64_t stamp;
	uint64_t rest[7];
};

static struct {
	uint64_t objects, readers, hold_ns, stuck_ns, size;
	int stop;
	uint64_t freed, sampled, age, oldest;
} flood;

static void rest(uint64_t ns)
{
	struct timespec time = { ns / 1000000000, ns % 1000000000 };
	nanosleep(&time, NULL);
}

/* Called by the one call_rcu thread. */
static void free_object(struct rcu_head *head)
{
	struct object *object = (struct object *)head;
	if (object->stamp) {
		uint64_t age = now(CLOCK_MONOTONIC) - object->stamp;
		flood.sampled++;
		flood.age += age;
		if (age > flood.oldest)
			flood.oldest = age;
	}
	free(object);
	__atomic_store_n(&flood.freed, flood.freed + 1, __ATOMIC_RELEASE);
}

static void *flood_reader(void *number)
{
	uint64_t hold = number ? flood.hold_ns : flood.stuck_ns;
	urcu_memb_register_thread();
	if (number)
		rest(hold * (uintptr_t)number / flood.readers);
	do {
		urcu_memb_read_lock();
		rest(hold);
		urcu_memb_read_unlock();
	} while (number && !get(&flood.stop));
	urcu_memb_unregister_thread();
	return NULL;
}

static void *flood_producer(void *number)
{
	struct object *cell = NULL;
	pin((int)(uintptr_t)number);
	urcu_memb_register_thread();
	for (uint64_t i = 0; i <= flood.objects; i++) {
		struct object *next = NULL, *old;
		if (i < flood.objects) {
			next = malloc(flood.size);
			next->stamp = i % 256 ? 0 : now(CLOCK_MONOTONIC);
			memset(next->rest, 1, flood.size - offsetof(struct object, rest));
		}
		old = __atomic_exchange_n(&cell, next, __ATOMIC_ACQ_REL);
		if (old)
			urcu_memb_call_rcu(&old->head, free_object);
	}
	urcu_memb_unregister_thread();
	return NULL;
}

/* Resident memory in KiB: now, or at most. */
static uint64_t resident(const char *key)
{
	char line[256];
	uint64_t kib = 0;
	FILE *status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof line, status))
		if (!strncmp(line, key, strlen(key)))
			kib = strtoull(line + strlen(key), NULL, 10);
	if (status)
		fclose(status);
	return kib;
}

#define FLOOD_THREADS 64

/* As `run` in defer_free.rs: the head is among the object's bytes. */
static size_t call_rcu_run(uint64_t size, uint64_t *numbers, size_t count)
{
	static uint64_t samples[1 << 16];
	pthread_t ids[FLOOD_THREADS];
	size_t threads = 0, taken = 0;
	if (count != 9 || numbers[0] + numbers[2] + 1 > FLOOD_THREADS)
		return 0;
	uint64_t producers = numbers[0];
	flood.objects = numbers[1];
	flood.readers = numbers[2];
	flood.hold_ns = numbers[3];
	flood.stuck_ns = numbers[4];
	flood.size = size;
	uint64_t before = resident("VmRSS:");
	for (uint64_t i = 0; i < flood.readers; i++)
		pthread_create(&ids[threads++], NULL, flood_reader, (void *)(uintptr_t)(i + 1));
	if (flood.stuck_ns) {
		pthread_create(&ids[threads++], NULL, flood_reader, NULL);
		rest(2000000);
	}
	uint64_t begun = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
	for (uint64_t i = 0; i < producers; i++)
		pthread_create(&ids[threads++], NULL, flood_producer, (void *)(uintptr_t)i);
	while (__atomic_load_n(&flood.freed, __ATOMIC_ACQUIRE) < producers * flood.objects) {
		uint64_t here = resident("VmRSS:");
		if (taken < sizeof samples / sizeof *samples)
			samples[taken++] = here > before ? here - before : 0;
		rest(1000000);
	}
	uint64_t took = now(CLOCK_MONOTONIC) - begun;
	cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	set(&flood.stop, 1);
	for (size_t i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	uint64_t sum = 0, footprint = taken ? samples[0] : 0;
	for (size_t i = 0; i < taken; i++)
		sum += samples[i];
	for (size_t quarter = 1; quarter < 4; quarter++)
		footprint = (footprint + samples[taken * quarter / 4]) / 2;
	uint64_t answer[] = {
		took, cpu, 0, resident("VmHWM:") - before, taken ? sum / taken : 0, footprint,
		flood.sampled ? flood.age / flood.sampled : 0, flood.oldest, 0, 0, 0, 0,
	};
	memcpy(numbers, answer, sizeof answer);
	return sizeof answer / sizeof *answer;
}

static size_t call_rcu_24(uint64_t *numbers, size_t count)
{
	return call_rcu_run(24, numbers, count);
}

static size_t call_rcu_64(uint64_t *numbers, size_t count)
{
	return call_rcu_run(64, numbers, count);
}

static const struct worker_case cases[] = {
	{ "urcu-memb", memb_read, NULL },
	{ "urcu-bp", bp_read, NULL },
	{ "urcu-qsbr", qsbr_read, NULL },
	{ "urcu-qsbr-64", qsbr_read_64, NULL },
	{ "urcu-qsbr-notify", qsbr_notify, NULL },
	{ "urcu-memb-sync", memb_sync, NULL },
	{ "urcu-qsbr-sync", qsbr_sync, NULL },
	{ "urcu-bp-sync", bp_sync, NULL },
	{ "urcu-memb-parked", NULL, memb_parked },
	{ "urcu-qsbr-parked", NULL, qsbr_parked },
	{ "urcu-bp-parked", NULL, bp_parked },
	{ "urcu-memb-busy", NULL, memb_busy },
	{ "urcu-qsbr-busy", NULL, qsbr_busy },
	{ "urcu-bp-busy", NULL, bp_busy },
	{ "urcu-memb-leave", NULL, memb_leave },
	{ "urcu-qsbr-leave", NULL, qsbr_leave },
	{ "urcu-bp-leave", NULL, bp_leave },
	{ "call-rcu-24", NULL, call_rcu_24 },
	{ "call-rcu-64", NULL, call_rcu_64 },
#ifdef HAVE_POLL
	{ "urcu-memb-poll", memb_poll, NULL },
	{ "urcu-memb-start-poll", memb_start_poll, NULL },
#endif
};

int main(void)
{
	begin();
	return serve(cases, sizeof cases / sizeof *cases);
}
