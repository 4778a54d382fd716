#include <owlet.bpf.h>

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

/* Half of what goes out was never written. */
SEC("entry")
int leftover(struct owlet_ctx *ctx)
{
	__u64 e[2];

	e[0] = ctx->arg[0];
	barrier_var(ctx);
	return bpf_ringbuf_output(&records, e, sizeof(e), 0);
}
