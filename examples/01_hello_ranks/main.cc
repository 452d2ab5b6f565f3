// Each rank sends a greeting to the next one: a put, and a signal that says that it has arrived.
#include <cstdio>
#include <cstring>
#include <string>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "overlace/signal.h"

int main() try {
  // Who we are was set by whoever started us; alone, the world is one rank.
  const auto bootstrap = overlace::environment_bootstrap();
  overlace::RuntimeOptions options = overlace::RuntimeOptions::from_environment();
  options.backend = overlace::Backend::cpu;
  overlace::Runtime runtime = overlace::Runtime::open(*bootstrap, options);
  overlace::Team& team = runtime.world();
  overlace::Channel& channel = team.channel(overlace::StreamRef::cpu());

  // The same calls in the same order on all ranks: so the inbox and the signal are the same everywhere.
  const overlace::SymBuffer inbox = runtime.heap().alloc(64, 256, "inbox");
  const overlace::SignalIds arrived = channel.ids(1, overlace::Domain::cpu, "arrived");

  team.barrier();  // a peer may be written to once it has allocated

  const int rank = team.rank(), next = (rank + 1) % team.size(), before = (rank + team.size() - 1) % team.size();
  const std::string greeting = "hello from rank " + std::to_string(rank);
  put_signal(channel.pod(), next, inbox.offset, greeting.c_str(), greeting.size() + 1, arrived.first);

  // A signal only grows: we wait for one more than we have consumed so far.
  const uint64_t wanted = ticket(channel.pod(), before, arrived.first) + 1;
  if (wait_ge(channel.pod(), before, arrived.first, wanted) != overlace::Errc::ok) runtime.check();
  consume(channel.pod(), before, arrived.first, 1);

  const char* got = static_cast<const char*>(team.local_ptr(inbox));
  std::printf("rank %d of %d got: %s\n", rank, team.size(), got);
  const bool is_right = got == "hello from rank " + std::to_string(before);
  runtime.close();
  return is_right ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
