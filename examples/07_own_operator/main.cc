// An operator of your own, scaled_gather: y = alpha x, gathered from all ranks. Peers fill an inbox of two buffers in
// turn, so there is no barrier between calls: who sends waits for the credit of the call before the last.
#include <cstdio>
#include <cstring>
#include <vector>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "overlace/signal.h"

class ScaledGather {
 public:
  ScaledGather(overlace::Channel& channel, size_t count)
      : channel_(channel),
        team_(channel.team()),
        count_(count),
        inbox_(channel.inbox(count * sizeof(float) * static_cast<size_t>(team_.size()), 2, "scaled_gather")) {}

  /// y (size, count) <- alpha x (count) of every rank, in rank order.
  void run(const std::vector<float>& x, float alpha, std::vector<float>& y) {
    std::vector<float> scaled(count_);
    for (size_t i = 0; i < count_; ++i) scaled[i] = alpha * x[i];
    const size_t bytes = count_ * sizeof(float), my_place = bytes * static_cast<size_t>(team_.rank());
    for (int p = 0; p < team_.size(); ++p) {
      const int peer = (team_.rank() + p) % team_.size();  // not all to rank 0 first
      check(inbox_wait_credit(channel_.pod(), inbox_.pod(), peer));
      inbox_put(channel_.pod(), inbox_.pod(), peer, my_place, scaled.data(), bytes);
      inbox_sent(channel_.pod(), inbox_.pod(), peer);
    }
    const char* mine =
        static_cast<const char*>(team_.local_ptr(inbox_.memory)) + (inbox_offset(inbox_.pod()) - inbox_.memory.offset);
    for (int sender = 0; sender < team_.size(); ++sender) {
      check(inbox_wait_data(channel_.pod(), inbox_.pod(), sender));
      const size_t place = static_cast<size_t>(sender) * count_;
      std::memcpy(y.data() + place, mine + place * sizeof(float), bytes);
      inbox_release(channel_.pod(), inbox_.pod(), sender);
    }
    check(flush(channel_.pod()));  // `scaled` is about to go
    inbox_advance(inbox_.pod());
  }

 private:
  /// A wait ends with data, or with an error whose cause check() throws.
  void check(overlace::Errc code) {
    if (code != overlace::Errc::ok) team_.runtime().check();
  }

  overlace::Channel& channel_;
  overlace::Team& team_;
  size_t count_;
  overlace::Inbox inbox_;
};

int main() try {
  constexpr size_t kCount = 1000;
  const auto bootstrap = overlace::environment_bootstrap();
  overlace::RuntimeOptions options = overlace::RuntimeOptions::from_environment();
  options.backend = overlace::Backend::cpu;
  overlace::Runtime runtime = overlace::Runtime::open(*bootstrap, options);
  overlace::Team& team = runtime.world();
  ScaledGather gather(team.channel(overlace::StreamRef::cpu()), kCount);

  const auto value = [](int rank, int call, size_t i) { return static_cast<float>(rank * 4096 + call * 64) + i % 61; };
  std::vector<float> x(kCount), y(kCount * static_cast<size_t>(team.size()));
  size_t wrong = 0;
  for (int call = 0; call < 100; ++call) {
    for (size_t i = 0; i < kCount; ++i) x[i] = value(team.rank(), call, i);
    gather.run(x, 2, y);
    for (int rank = 0; rank < team.size(); ++rank)
      for (size_t i = 0; i < kCount; ++i)
        wrong += y[static_cast<size_t>(rank) * kCount + i] != 2 * value(rank, call, i) ? 1 : 0;
  }
  std::printf("rank %d: %zu of %zu values are wrong\n", team.rank(), wrong, 100 * y.size());
  team.barrier();  // all have released what was sent
  runtime.close();
  return wrong == 0 ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
