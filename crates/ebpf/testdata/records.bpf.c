#include <owlet.bpf.h>

struct begin {
	__u64 id;
	char comm[16];
	char text[24];
	__s64 len;
};

struct end {
	__u64 id;
	__u64 ret;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

__u64 calls;

/* A record at the entry and another one at the return, with the number of the call in both; none of odd
 * calls' entries.
 */
SEC("session")
int both(struct owlet_ctx *ctx)
{
	if (owlet_session_is_return(ctx)) {
		struct end *e = bpf_ringbuf_reserve(&records, sizeof(*e), 0);

		if (!e)
			return 0;
		e->id = owlet_session_get(ctx);
		e->ret = ctx->ret;
		bpf_ringbuf_submit(e, 0);
		return 0;
	}
	__u64 id = __sync_fetch_and_add(&calls, 1);
	struct begin *b = bpf_ringbuf_reserve(&records, sizeof(*b), 0);

	owlet_session_set(ctx, id);
	if (!b)
		return 0;
	b->id = id;
	bpf_get_current_comm(b->comm, sizeof(b->comm));
	b->len = bpf_probe_read_user_str(b->text, sizeof(b->text), (void *)ctx->arg[0]);
	if (id & 1)
		bpf_ringbuf_discard(b, 0);
	else
		bpf_ringbuf_submit(b, 0);
	return 0;
}
