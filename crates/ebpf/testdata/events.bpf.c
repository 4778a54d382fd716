#include <owlet.bpf.h>

struct event {
	__u64 ip;
	__u64 cookie;
	__u64 arg;
	__u64 ret;
	char comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

SEC("session")
int both(struct owlet_ctx *ctx)
{
	struct event e = {};

	e.ip = bpf_get_func_ip(ctx);
	e.cookie = bpf_get_attach_cookie(ctx);
	bpf_get_func_arg(ctx, 1, &e.arg);
	bpf_get_func_ret(ctx, &e.ret);
	bpf_get_current_comm(e.comm, sizeof(e.comm));
	return bpf_ringbuf_output(&events, &e, sizeof(e), 0);
}
