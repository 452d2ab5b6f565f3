// A block at the same offset of every rank's heap: each rank stores its row into the table of every other, directly.
#include <cstdio>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "overlace/signal.h"

int value_of(int rank, int column) { return 1000 * rank + column; }

int main() try {
  constexpr int kColumns = 100;
  const auto bootstrap = overlace::environment_bootstrap();
  overlace::RuntimeOptions options = overlace::RuntimeOptions::from_environment();
  options.backend = overlace::Backend::cpu;
  overlace::Runtime runtime = overlace::Runtime::open(*bootstrap, options);
  overlace::Team& team = runtime.world();
  overlace::Channel& channel = team.channel(overlace::StreamRef::cpu());

  const size_t rows = static_cast<size_t>(team.size());
  const overlace::SymBuffer table = runtime.heap().alloc(rows * kColumns * sizeof(int), 256, "table");
  team.barrier();  // a peer may be written to once it has allocated
  for (int peer = 0; peer < team.size(); ++peer) {
    int* row = static_cast<int*>(team.peer_ptr(table, peer)) + team.rank() * kColumns;
    for (int column = 0; column < kColumns; ++column) row[column] = value_of(team.rank(), column);
  }
  // What was stored before the barrier is visible on all ranks after it.
  if (barrier(channel.pod()) != overlace::Errc::ok) runtime.check();

  int wrong = 0;
  const int* mine = static_cast<const int*>(team.local_ptr(table));
  for (int rank = 0; rank < team.size(); ++rank)
    for (int column = 0; column < kColumns; ++column)
      wrong += mine[rank * kColumns + column] != value_of(rank, column) ? 1 : 0;
  std::printf("rank %d: %d of %zu values are wrong\n", team.rank(), wrong, rows * kColumns);
  if (barrier(channel.pod()) != overlace::Errc::ok) runtime.check();  // nobody frees what another still reads
  runtime.heap().free(table);
  runtime.close();
  return wrong == 0 ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
