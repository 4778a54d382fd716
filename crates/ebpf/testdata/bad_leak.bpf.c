#include <owlet.bpf.h>

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

/* Forgets the record of large arguments. */
SEC("entry")
int leaks(struct owlet_ctx *ctx)
{
	__u64 *e = bpf_ringbuf_reserve(&records, sizeof(*e), 0);

	if (!e)
		return 0;
	*e = ctx->arg[0];
	if (ctx->arg[0] > 1000)
		return 1;
	bpf_ringbuf_submit(e, 0);
	return 0;
}
