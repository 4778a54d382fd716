/*
 * The measured side of a peer written in C: the line protocol of harness/serve.rs.
 * A program includes this once, fills a table of cases and ends its main with serve().
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define KEEP(x) __asm__ volatile("" : "+r"(x))
#define MAX_THREADS 64
#define MAX_NUMBERS 16384

typedef void (*body_fn)(uint64_t n);
/* From numbers to numbers, in place; says how many there are now. */
typedef size_t (*call_fn)(uint64_t *numbers, size_t count);

struct worker_case {
	const char *name;
	body_fn body;
	call_fn call;
};

static inline uint64_t now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int allowed[CPU_SETSIZE], allowed_count;

static inline void pin(unsigned cpu)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(allowed[cpu % allowed_count], &one);
	sched_setaffinity(0, sizeof one, &one);
}

static inline void mark(void)
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

static void step(body_fn body, uint64_t n)
{
	pin(0);
	body(n);
	mark();
	body(n);
	mark();
	body(2 * n);
	mark();
	printf("ok\n");
}

static void call(call_fn body, const char *words)
{
	static uint64_t numbers[MAX_NUMBERS];
	size_t count = 0;
	int used;
	while (count < 16 && sscanf(words, "%lu%n", &numbers[count], &used) == 1) {
		words += used;
		count++;
	}
	count = body(numbers, count);
	printf("ok");
	for (size_t i = 0; i < count; i++)
		printf(" %lu", numbers[i]);
	printf("\n");
}

/* Before anything else in main. */
static void begin(void)
{
	cpu_set_t set;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sched_getaffinity(0, sizeof set, &set);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set))
			allowed[allowed_count++] = i;
}

static int serve(const struct worker_case *cases, size_t count)
{
	char line[512], verb[16], name[64];
	unsigned threads, cpu;
	unsigned long n;
	int rest;

	printf("ready");
	for (size_t i = 0; i < count; i++)
		printf(" %s", cases[i].name);
	printf("\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		const struct worker_case *it = NULL;
		if (sscanf(line, "%15s %63s%n", verb, name, &rest) != 2)
			return 2;
		for (size_t i = 0; i < count; i++)
			if (!strcmp(cases[i].name, name))
				it = &cases[i];
		if (!it)
			return 2;
		if (!strcmp(verb, "step") && it->body && sscanf(line + rest, "%lu", &n) == 1)
			step(it->body, n);
		else if (!strcmp(verb, "run") && it->body &&
			 sscanf(line + rest, "%u %u %lu", &threads, &cpu, &n) == 3 &&
			 threads <= MAX_THREADS)
			run(it->body, threads, cpu, n);
		else if (!strcmp(verb, "call") && it->call)
			call(it->call, line + rest);
		else
			return 2;
		fflush(stdout);
	}
	return 0;
}
