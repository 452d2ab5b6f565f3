// Convolutions over an image and over a long sequence whose rows are dealt to the ranks. Each rank needs rows of
// others: borders leave first, the interior, which needs none, is computed while they travel, the edges come last.
// Beside it the twin that waits, and one rank that does it all. usage: 10_halo [halo.json], a file for ui.perfetto.dev.
#include <chrono>
#include <cstdio>

#include "case.h"
#include "overlace/error.h"

constexpr int kRepeats = 5;
// Rows, width, channels, taps, side, dilation, stride.
constexpr Convolution kTimed[] = {{"image", 601, 1400, 1, 7, 7, 1, 1}, {"sequence", 3001, 16, 8, 9, 1, 8, 1}};
constexpr Convolution kOthers[] = {{"odd image, stride 2", 37, 23, 2, 5, 3, 1, 2},
                                   {"dilation 64", 401, 3, 2, 3, 1, 64, 1},
                                   {"dilation 64, stride 2", 401, 3, 2, 3, 1, 64, 2},
                                   {"kernel 51", 203, 4, 1, 51, 1, 1, 1},
                                   {"wider than a neighbour's part", 17, 5, 2, 15, 1, 2, 1},
                                   {"empty tiles", 2, 9, 2, 3, 3, 1, 2},
                                   {"one row", 1, 6, 1, 3, 3, 1, 1}};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

overlace::RuntimeOptions options_of(double bytes_per_s) {
  overlace::RuntimeOptions options = overlace::RuntimeOptions::from_environment();
  options.backend = overlace::Backend::cpu;
  if (bytes_per_s > 0) options.link = {.enabled = true, .bytes_per_s = bytes_per_s, .latency_s = 1e-5};
  return options;
}

/// The slowest rank's.
double most_of(overlace::Bootstrap& bootstrap, double mine) {
  double most = mine;
  for (const overlace::Bytes& theirs : bootstrap.allgather(std::as_bytes(std::span(&mine, 1)), 10'000))
    most = std::max(most, *reinterpret_cast<const double*>(theirs.data()));
  return most;
}

struct Time {
  double pass_s = 1e9, waited_s = 0;  // the fastest pass, and what it waited for borders
};

Time forward(overlace::Bootstrap& bootstrap, Case& one, Order order) {
  Time best;
  for (int i = 0; i < kRepeats; ++i) {
    one.take_waited_s();
    const double begin_s = now_s();
    one.forward(order);
    const double pass_s = most_of(bootstrap, now_s() - begin_s), waited_s = most_of(bootstrap, one.take_waited_s());
    if (pass_s < best.pass_s) best = {pass_s, waited_s};
  }
  return best;
}

/// Both orders give what one rank gives; `times`: how long forward takes where a border takes 0.9 of the computation.
int run(overlace::Bootstrap& bootstrap, const Convolution& convolution, bool times, Spans& spans) {
  double bytes_per_s = 0, alone_s = 0;
  int wrong = 0;
  for (const bool is_measured : {false, true}) {
    if (is_measured && !times) break;
    overlace::Runtime runtime = overlace::Runtime::open(bootstrap, options_of(bytes_per_s));
    Case one(convolution, bootstrap.rank(), bootstrap.size(), spans);
    one.open(runtime, runtime.world().channel(overlace::StreamRef::cpu()));
    runtime.world().barrier();
    if (!is_measured) alone_s = forward(bootstrap, one, Order::alone).pass_s;
    if (is_measured && bootstrap.size() > 1) {
      const Time waits = forward(bootstrap, one, Order::waits), hidden = forward(bootstrap, one, Order::hidden);
      std::printf(
          "rank %d: %s: computation %.2f ms, borders %.2f ms; with them behind it %.2f ms, waits %.2f ms (%.0f %%); "
          "with them in front of it %.2f ms, waits %.2f ms\n",
          bootstrap.rank(), convolution.name, 1e3 * alone_s, 0.9e3 * alone_s, 1e3 * hidden.pass_s,
          1e3 * hidden.waited_s, 100 * hidden.waited_s / (0.9 * alone_s), 1e3 * waits.pass_s, 1e3 * waits.waited_s);
    }
    for (const Order order : {Order::waits, Order::hidden}) {
      if (is_measured) spans.begin(convolution.name + std::string(order == Order::hidden ? ", hidden" : ", twin"));
      one.forward(order);
      spans.end();
      one.backward(order);
      wrong += one.wrong(bootstrap);
    }
    bytes_per_s = static_cast<double>(one.longest_border()) / (0.9 * alone_s);
    runtime.world().barrier();
    runtime.close();
  }
  if (wrong != 0) std::printf("rank %d: %s: %d values are wrong\n", bootstrap.rank(), convolution.name, wrong);
  return wrong;
}

int main(int argc, char** argv) try {
  const auto bootstrap = overlace::environment_bootstrap();
  Spans spans(bootstrap->rank());
  int wrong = 0;
  for (const Convolution& convolution : kTimed) wrong += run(*bootstrap, convolution, true, spans);
  for (const Convolution& convolution : kOthers) wrong += run(*bootstrap, convolution, false, spans);
  wrong += spans.write(*bootstrap, argc > 1 ? argv[1] : "halo.json") ? 0 : 1;
  std::printf("rank %d: %d values are wrong\n", bootstrap->rank(), wrong);
  return wrong == 0 ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
