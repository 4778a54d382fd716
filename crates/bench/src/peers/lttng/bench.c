/*
 * The LTTng-UST peer: the event-cost cases. Built at run time against the installed liblttng-ust.
 */
#include "worker.h"

#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "tp.h"

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

static const struct worker_case cases[] = {
	{ "disabled", off, NULL }, { "1-field", on_1, NULL }, { "3-fields", on_3, NULL },
};

int main(void)
{
	begin();
	/* The library registers with the session daemon before main; wait until it took effect. */
	for (int i = 0; i < 200 && !lttng_ust_tracepoint_enabled(owlet_bench, on_3); i++)
		usleep(10000);
	if (!lttng_ust_tracepoint_enabled(owlet_bench, on_3)) {
		printf("absent the session daemon did not enable the events\n");
		return 0;
	}
	return serve(cases, sizeof cases / sizeof *cases);
}
