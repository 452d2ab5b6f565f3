// Nothing hangs: rank 0 waits for a signal that never comes. Rank 1 gives up, and rank 0 learns why.
#include <cstdio>
#include <string>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "overlace/signal.h"

int main() try {
  const auto bootstrap = overlace::environment_bootstrap();
  overlace::RuntimeOptions options = overlace::RuntimeOptions::from_environment();
  options.backend = overlace::Backend::cpu;
  options.timeout_ms = 1000;  // the longest wait for a peer; 300 s by default, so that slow starts are no errors
  overlace::Runtime runtime = overlace::Runtime::open(*bootstrap, options);
  overlace::Team& team = runtime.world();
  overlace::Channel& channel = team.channel(overlace::StreamRef::cpu());
  const overlace::SignalIds never = channel.ids(1, overlace::Domain::cpu, "never");

  // A bad argument is refused where it is given, with the value got and the value wanted.
  std::string refusal;
  try {
    runtime.heap().alloc(100, 24, "odd");
  } catch (const overlace::InvalidArgument& error) {
    refusal = error.what();
  }
  std::printf("rank %d: %s\n", team.rank(), refusal.c_str());
  bool is_right = refusal.find("align is 24, wanted a power of two") != std::string::npos;

  try {
    team.barrier();  // both have come here
    // With one rank alone there is nobody who could give up: then the deadline ends the wait.
    if (team.rank() == 1) {
      runtime.abort(overlace::Errc::aborted, "rank 1 has nothing to send");
    } else if (wait_ge(channel.pod(), team.size() - 1, never.first, 1) == overlace::Errc::ok) {
      return 1;
    }
    runtime.check();  // throws the first cause
    is_right = false;
  } catch (const overlace::Error& error) {
    std::printf("rank %d: %s: %s\n", team.rank(), overlace::errc_name(error.code()).data(), error.what());
    const overlace::Errc wanted = team.size() > 1 ? overlace::Errc::aborted : overlace::Errc::timeout;
    is_right = is_right && error.code() == wanted;
  }
  runtime.close();  // an aborted runtime can still be closed, and another one opened
  return is_right ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
