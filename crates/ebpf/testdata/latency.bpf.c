#include <owlet.bpf.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u64);
} begun SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} hist SEC(".maps");

static __always_inline __u32 log2(__u64 v)
{
	__u32 bits = 0;

	if (v >> 32) { v >>= 32; bits += 32; }
	if (v >> 16) { v >>= 16; bits += 16; }
	if (v >> 8) { v >>= 8; bits += 8; }
	if (v >> 4) { v >>= 4; bits += 4; }
	if (v >> 2) { v >>= 2; bits += 2; }
	if (v >> 1) bits += 1;
	return bits;
}

SEC("entry/mini_redis::*")
int begin(struct owlet_ctx *ctx)
{
	__u64 key = bpf_get_current_pid_tgid();
	__u64 now = bpf_ktime_get_ns();

	bpf_map_update_elem(&begun, &key, &now, BPF_ANY);
	return 0;
}

SEC("exit/mini_redis::*")
int end(struct owlet_ctx *ctx)
{
	__u64 key = bpf_get_current_pid_tgid();
	__u64 *at = bpf_map_lookup_elem(&begun, &key);
	__u64 *slot;
	__u32 index;

	if (!at)
		return 0;
	index = log2(bpf_ktime_get_ns() - *at);
	slot = bpf_map_lookup_elem(&hist, &index);
	if (slot)
		*slot += 1;
	bpf_map_delete_elem(&begun, &key);
	return 0;
}
