/* Trace points of the LTTng-UST peer: the fields of the event-cost cases. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER owlet_bench

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./tp.h"

#if !defined(OWLET_BENCH_TP_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define OWLET_BENCH_TP_H

#include <stdint.h>
#include <lttng/tracepoint.h>

LTTNG_UST_TRACEPOINT_EVENT(owlet_bench, off,
	LTTNG_UST_TP_ARGS(uint64_t, value),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, value, value)))

LTTNG_UST_TRACEPOINT_EVENT(owlet_bench, on_1,
	LTTNG_UST_TP_ARGS(uint64_t, value),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, value, value)))

LTTNG_UST_TRACEPOINT_EVENT(owlet_bench, on_3,
	LTTNG_UST_TP_ARGS(uint64_t, value, uint64_t, other, const char *, note),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint64_t, value, value)
		lttng_ust_field_integer(uint64_t, other, other)
		lttng_ust_field_string(note, note)))

#endif

#include <lttng/tracepoint-event.h>
