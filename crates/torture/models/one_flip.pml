/*
 * The grace period with one flip and one RSEQ membarrier, on machines with store buffers.
 *
 * Loom knows neither store buffers that a barrier on another CPU empties nor sequences that it restarts;
 * `crates/rcu/tests/loom.rs` stands in a mutex for both. This model has them as they are on x86-64:
 *
 *   - Stores of a CPU go into its buffer, first in, first out; `Flush` moves them to memory at any time.
 *     Loads are in program order and look at memory. (A CPU's own words it sees at once: `own`.)
 *   - A full barrier empties the CPU's buffer. Locked instructions are full barriers.
 *   - membarrier(PRIVATE_EXPEDITED_RSEQ) empties the caller's buffer, then each CPU's, one after the
 *     other, and restarts the sequence in flight there (kernel/sched/membarrier.c, ipi_rseq).
 *   - A sequence commits by its last store, unless it has been restarted. Preemption restarts, too; the
 *     model leaves that out, which only adds behaviours.
 *   - A section may move to the other CPU before it ends (the move is a full barrier).
 *
 * The steps and letters are those of `crates/rcu/src/protocol.rs`. What is checked: no element is used
 * after it has been freed. One run without any of the following must pass; with each of them it must fail
 * (`cargo xtask test spin`):
 *
 *   NO_MEMBARRIER     [G] is left out
 *   NO_RESTART        [G] is a membarrier without RSEQ: buffers are emptied, sequences go on
 *   ONE_RANK          step 1 is left out
 *   ENTRIES_FIRST     entries are summed before exits
 *   NO_FENCE_AT_START [E] is left out
 */

#define CPUS 2
#define UPDATER 2                       /* the CPU of the updater: a buffer of its own */
#define GRACE_PERIODS 2

/* Addresses. */
#define ENTRY(cpu, rank) (4 * (cpu) + (rank))
#define EXIT(cpu, rank)  (4 * (cpu) + 2 + (rank))
#define POINTER 8                       /* which element is published */
#define INDEX 9                         /* which rank new sections enter */
#define ATOMIC_ENTRY(rank) (10 + (rank))
#define ATOMIC_EXIT(rank)  (12 + (rank))

byte mem[14];
byte own[8];                            /* a CPU's own words, buffer included */
chan buffer[3] = [3] of { byte, byte };
bool in_sequence[2], restart[2];
byte cpu_of[2];
bool freed[GRACE_PERIODS + 1];

#define STORE(cpu, at, value) buffer[cpu]!at, value
#define BARRIER(cpu) \
	d_step { \
		do \
		:: len(buffer[cpu]) > 0 -> buffer[cpu]?at, value; mem[at] = value \
		:: else -> break \
		od; \
		at = 0; value = 0 \
	}

/* Store buffers reach memory when they like. */
active [1] proctype Flush()
{
	byte at, value;
end:
	do
	:: d_step { len(buffer[0]) > 0 -> buffer[0]?at, value; mem[at] = value; at = 0; value = 0 }
	:: d_step { len(buffer[1]) > 0 -> buffer[1]?at, value; mem[at] = value; at = 0; value = 0 }
	:: d_step { len(buffer[2]) > 0 -> buffer[2]?at, value; mem[at] = value; at = 0; value = 0 }
	od
}

/* A reader with rseq. */
proctype Sequence(byte me; byte cpu)
{
	byte at, value, index, element;

again:
	index = mem[INDEX];
sequence:
	atomic { in_sequence[me] = true; restart[me] = false; cpu_of[me] = cpu };
	/* [R0] compare ... */
	if
	:: mem[INDEX] == index
	:: else -> in_sequence[me] = false; goto again
	fi;
	/* ... and commit: [R1] is nothing but the order of the program. */
	atomic {
		in_sequence[me] = false;
		if
		:: restart[me] -> goto sequence
		:: else ->
			own[ENTRY(cpu, index)]++;
			STORE(cpu, ENTRY(cpu, index), own[ENTRY(cpu, index)])
		fi
	};

	element = mem[POINTER];
	if
	:: true
	:: BARRIER(cpu); cpu = 1 - cpu
	fi;
	assert(!freed[element]);

	/* [R2] stores stay in order, and loads before later stores. */
	atomic {
		own[EXIT(cpu, index)]++;
		STORE(cpu, EXIT(cpu, index), own[EXIT(cpu, index)])
	}
}

/* A reader without rseq: looks at the index, and counts itself some time later. */
proctype Straggler()
{
	byte index, element;

	index = mem[INDEX];
	mem[ATOMIC_ENTRY(index)]++;
	element = mem[POINTER];
	assert(!freed[element]);
	mem[ATOMIC_EXIT(index)]++
}

#define SUM_ENTRIES(rank) \
	sum = sum + mem[ENTRY(0, rank)]; sum = sum + mem[ENTRY(1, rank)]; sum = sum + mem[ATOMIC_ENTRY(rank)]
#define SUM_EXITS(rank) \
	sum = sum - mem[EXIT(0, rank)]; sum = sum - mem[EXIT(1, rank)]; sum = sum - mem[ATOMIC_EXIT(rank)]

#ifdef ENTRIES_FIRST
#define SUMS(rank) SUM_ENTRIES(rank); SUM_EXITS(rank)
#else
#define SUMS(rank) SUM_EXITS(rank); SUM_ENTRIES(rank)
#endif

#define WAIT_UNTIL_EMPTY(rank) \
	do \
	:: sum = 0; SUMS(rank); \
		if :: sum == 0 -> break :: else fi \
	od

inline interrupt(cpu)
{
	atomic {
		BARRIER(cpu);
#ifndef NO_RESTART
		restart[0] = restart[0] || (in_sequence[0] && cpu_of[0] == cpu);
		restart[1] = restart[1] || (in_sequence[1] && cpu_of[1] == cpu);
#endif
	}
}

proctype Updater()
{
	byte at, value, new = 1, old_rank = 0;
	short sum;

	do
	:: new <= GRACE_PERIODS ->
		STORE(UPDATER, POINTER, new);
#ifndef NO_FENCE_AT_START
		BARRIER(UPDATER);               /* [E] */
#endif
#ifndef ONE_RANK
		WAIT_UNTIL_EMPTY(1 - old_rank); /* step 1 */
#endif
		STORE(UPDATER, INDEX, 1 - old_rank); /* step 2 */
#ifndef NO_MEMBARRIER
		BARRIER(UPDATER);               /* [G] step 3 */
		interrupt(0);
		interrupt(1);
#endif
		WAIT_UNTIL_EMPTY(old_rank);     /* step 4 */
		freed[new - 1] = true;
		old_rank = 1 - old_rank;
		new++
	:: else -> break
	od
}

init
{
	atomic {
		run Updater();
		run Sequence(0, 0);
		run Sequence(1, 1);
		run Straggler()
	}
}
