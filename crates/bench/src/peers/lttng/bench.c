/*
 * The LTTng-UST peer: the event-cost cases behind the line protocol of harness/serve.rs.
 * Built at run time against the installed liblttng-ust.
 */
#define _GNU_SOURCE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "tp.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define KEEP(x) __asm__ volatile("" : "+r"(x))
#define MAX_THREADS 64

typedef void (*body_fn)(uint64_t n);

static void off(uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		uint64_t value = i;
		KEEP(value);
		lttng_ust_tracepoint(owlet_bench, off, value);
	}
}

static void on_1(uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		uint64_t value = i;
		KEEP(value);
		lttng_ust_tracepoint(owlet_bench, on_1, value);
	}
}

static void on_3(uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		uint64_t value = i;
		const char *note = "nine char";
		KEEP(value);
		KEEP(note);
		lttng_ust_tracepoint(owlet_bench, on_3, value, value ^ 1, note);
	}
}

static const struct { const char *name; body_fn body; } cases[] = {
	{ "disabled", off }, { "1-field", on_1 }, { "3-fields", on_3 },
};

static uint64_t now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int allowed[CPU_SETSIZE], allowed_count;

static void pin(unsigned cpu)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(allowed[cpu % allowed_count], &one);
	sched_setaffinity(0, sizeof one, &one);
}

static void mark(void)
{
	syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), SIGUSR1);
}

static struct { body_fn body; unsigned cpu; uint64_t n, cpu_ns, wall_ns; } runs[MAX_THREADS];
static pthread_barrier_t barrier;

static void *measure(void *arg)
{
	size_t i = (size_t)arg;
	pin(runs[i].cpu);
	runs[i].body(runs[i].n / 16 + 1);
	pthread_barrier_wait(&barrier);
	uint64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
	runs[i].body(runs[i].n);
	runs[i].cpu_ns = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
	runs[i].wall_ns = now(CLOCK_MONOTONIC) - wall;
	return NULL;
}

static void run(body_fn body, unsigned threads, unsigned cpu, uint64_t n)
{
	pthread_t ids[MAX_THREADS];
	pthread_barrier_init(&barrier, NULL, threads);
	for (size_t i = 0; i < threads; i++) {
		runs[i].body = body;
		runs[i].cpu = cpu + (unsigned)i;
		runs[i].n = n;
		pthread_create(&ids[i], NULL, measure, (void *)i);
	}
	printf("ok");
	for (size_t i = 0; i < threads; i++) {
		pthread_join(ids[i], NULL);
		printf(" %lu %lu", runs[i].cpu_ns, runs[i].wall_ns);
	}
	printf("\n");
	pthread_barrier_destroy(&barrier);
}

int main(void)
{
	char line[256], name[64];
	unsigned threads, cpu;
	unsigned long n;
	cpu_set_t set;

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sched_getaffinity(0, sizeof set, &set);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set))
			allowed[allowed_count++] = i;
	/* The library registers with the session daemon before main; wait until it took effect. */
	for (int i = 0; i < 200 && !lttng_ust_tracepoint_enabled(owlet_bench, on_3); i++)
		usleep(10000);
	if (!lttng_ust_tracepoint_enabled(owlet_bench, on_3)) {
		printf("absent the session daemon did not enable the events\n");
		return 0;
	}
	printf("ready disabled 1-field 3-fields\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		body_fn body = NULL;
		int is_step = sscanf(line, "step %63s %lu", name, &n) == 2;
		if (!is_step && sscanf(line, "run %63s %u %u %lu", name, &threads, &cpu, &n) != 4)
			return 2;
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
			if (!strcmp(cases[i].name, name))
				body = cases[i].body;
		if (!body || (!is_step && threads > MAX_THREADS))
			return 2;
		if (is_step) {
			pin(0);
			body(n);
			mark();
			body(n);
			mark();
			body(2 * n);
			mark();
			printf("ok\n");
		} else {
			run(body, threads, cpu, n);
		}
		fflush(stdout);
	}
	return 0;
}
