// What calibration times: small schedules that do one thing, so that ranks of any backend run them and the simulator
// can say afterwards what it would have expected.
#pragma once

#include <cstdint>
#include <string>

#include "overlace/schedule.h"
#include "src/spec/costs.h"

namespace overlace::cli {

/// Who copies to whom: rank 0 to rank 1; every rank to the next one; to all others, one after the other; to itself.
enum class CopyWay { pair, ring, all, local };

/// `count` equal GEMMs after each other on every rank.
spec::Schedule gemm_probe(int ranks, DType dtype, const spec::GemmWork& shape, int count);
/// `count` copies of `bytes` on one lane, to each peer that `way` names; `rows` > 1: of rows that lie twice their
/// length apart; with a signal to the receiver behind each where `has_posts`.
spec::Schedule copy_probe(int ranks, CopyWay way, int64_t bytes, int count, int64_t rows = 1, bool has_posts = false);
/// `count` copies of `bytes` on one lane, by rank `from` to rank `to`.
spec::Schedule link_probe(int ranks, int from, int to, int64_t bytes, int count);
/// `count` sums of two vectors on one lane that together read and write `bytes`; with a signal to the next rank behind
/// each where `has_signals`.
spec::Schedule reduce_probe(int ranks, int64_t bytes, int count, bool has_signals = false);
/// Bytes of the smallest of these, which takes no time to speak of.
inline constexpr int64_t kTinyReduce = 3 * 16 * 4;

/// `count` tiny sums that each wait for a signal that the rank before has sent long ago.
spec::Schedule wait_probe(int ranks, int count);
/// Tiny sums on rank 0 and rank 1 in turn, `count` each, every one behind a signal of the other's.
spec::Schedule flag_probe(int ranks, int count);
/// A tiny sum and a copy inside the rank in turn, `count` each, on two lanes that depend on each other.
spec::Schedule event_probe(int ranks, int count);
spec::Schedule barrier_probe(int ranks, int count);
/// `bytes` as Machine::Collectives counts them.
spec::Schedule collective_probe(int ranks, const std::string& name, int64_t bytes, int count);

/// GPUs: sums of large vectors that everything of `work` then stands behind, so that the thread which queues small
/// pieces is ahead of them; each adds to a word of the next rank.
void put_behind_lead(spec::Schedule* work, int sums);
spec::Schedule lead_probe(int ranks, int sums);

/// CPU ranks: a barrier behind the first task, so that ranks which share something (cores that are half a core, memory)
/// do their work at the same time.
void add_barrier(spec::Schedule* work);
/// Work of a rank and, from elsewhere, copies into its memory: `copies` of `bytes` by rank 1 while rank 0 works; or,
/// with `is_own`, by every rank to all others while it works itself.
void add_copies_beside(spec::Schedule* work, int64_t bytes, int copies, bool is_own);
/// The work of such a schedule on rank 0 alone.
spec::Schedule on_first_rank(spec::Schedule work);

}  // namespace overlace::cli
