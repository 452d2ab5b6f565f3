// Exchanges that are tested in every mode: threads and processes, both heaps, teams.
#pragma once

#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {

/// Every pair, sizes from 1 byte to some MiB, all alignments of source and destination, all ways to put: patterns
/// differ by sender, receiver and size, so that a permutation of ranks or bytes shows.
void exchange_patterns(GpuRank& gpu);
/// Copies of streams, 1-D and 2-D, each followed by a signal node.
void exchange_stream_puts(GpuRank& gpu);
/// In sub-team {0, 2} or {3, 1} of four ranks.
void exchange_in_subteams(GpuRank& gpu);
/// put, wait and barrier captured in a graph with epochs in device memory; 1000 replays, then eager on another channel.
void replay_graph(GpuRank& gpu);

}  // namespace overlace::test
