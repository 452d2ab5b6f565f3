#include "src/io/measure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <system_error>

#include "src/io/engine.h"
#include "src/io/stream.h"

namespace overlace::io {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Plan {
  int64_t request_bytes;
  int depth;
  bool is_random;
};
constexpr Plan kPlans[] = {{kMiB, 1, false},       {kMiB, 4, false},       {kMiB, 8, false},
                           {kMiB, 32, false},      {64 << 10, 32, false},  {kPageBytes, 1, true},
                           {kPageBytes, 32, true}, {kPageBytes, 128, true}};

class Bench {
 public:
  Bench(std::string path, const MeasureOptions& options) : path_(std::move(path)), options_(options) {}

  base::Status run(StorageFigures* figures) {
    OVERLACE_TRY(write(figures));
    int done = 1;
    for (const Plan& plan : kPlans) {
      if (options_.progress)
        options_.progress(base::format("{} KiB at depth {}", plan.request_bytes >> 10, plan.depth),
                          static_cast<double>(done) / (1 + std::size(kPlans)));
      OVERLACE_TRY(read(plan, figures));
      ++done;
    }
    return {};
  }

 private:
  base::Result<std::unique_ptr<IoEngine>> engine(int depth) const {
    EngineOptions options;
    options.engine = options_.engine;
    options.depth = depth;
    return IoEngine::open(std::move(options));
  }

  base::Status write(StorageFigures* figures) {
    if (options_.progress) options_.progress("write", 0);
    auto writing = engine(32);
    if (!writing.ok()) return writing.status();
    auto file = (*writing)->open_file(path_, FileMode::create);
    ::unlink(path_.c_str());  // nobody has to tidy up, however this ends
    if (!file.ok()) return file.status();
    file_ = std::move(*file);
    OVERLACE_TRY(file_->allocate(options_.file_bytes));
    auto writer = StreamWriter::open(writing->get(), file_, {kMiB, 8});
    if (!writer.ok()) return writer.status();
    // Incompressible, and different everywhere: some disks store equal pages once.
    std::vector<uint64_t> chunk(kMiB / sizeof(uint64_t));
    std::mt19937_64 random(1);
    for (uint64_t& word : chunk) word = random();
    const Clock::time_point begin = Clock::now();
    for (int64_t at = 0; at < options_.file_bytes; at += kMiB) {
      for (size_t page = 0; page < chunk.size(); page += 512) chunk[page] = static_cast<uint64_t>(at) + page;
      OVERLACE_TRY((*writer)->append(std::as_bytes(std::span(chunk))));
    }
    OVERLACE_TRY((*writer)->finish());
    figures->write = {kMiB, 8, false, options_.file_bytes / kMiB, seconds_since(begin)};
    figures->engine = (*writing)->name();
    figures->is_direct = file_->is_direct();
    return {};
  }

  base::Status read(const Plan& plan, StorageFigures* figures) {
    const base::Result<Ring> ring = Ring::make(plan.depth, plan.request_bytes);
    if (!ring.ok()) return ring.status();
    auto reading = engine(plan.depth);  // behind the ring: it ends first, with what is under way
    if (!reading.ok()) return reading.status();
    OVERLACE_TRY(file_->drop_cached());
    (void)(*reading)->use_memory(ring->memory());
    std::mt19937_64 random(2);
    const int64_t places = options_.file_bytes / plan.request_bytes;
    int64_t begun = 0;
    std::vector<double> latencies;
    std::vector<Clock::time_point> starts(static_cast<size_t>(plan.depth));
    const auto ask = [&](uint64_t slot) {
      const int64_t place =
          plan.is_random ? static_cast<int64_t>(random() % static_cast<uint64_t>(places)) : begun % places;
      ++begun;
      starts[slot] = Clock::now();
      return (*reading)->read(file_, place * plan.request_bytes, plan.request_bytes,
                              ring->slot(static_cast<int64_t>(slot)), slot);
    };
    const Clock::time_point begin = Clock::now();
    for (int slot = 0; slot < plan.depth; ++slot) OVERLACE_TRY(ask(static_cast<uint64_t>(slot)));
    int64_t ended = 0;
    while ((*reading)->pending() > 0) {
      Completion done[32];
      const base::Result<size_t> n = (*reading)->poll(done);
      if (!n.ok()) return n.status();
      const bool goes_on = seconds_since(begin) < options_.seconds;
      for (size_t i = 0; i < *n; ++i) {
        OVERLACE_TRY(done[i].status);
        ++ended;
        if (plan.depth == 1) latencies.push_back(seconds_since(starts[done[i].tag]) * 1e6);
        if (goes_on) OVERLACE_TRY(ask(done[i].tag));
      }
    }
    const StoragePoint point{plan.request_bytes, plan.depth, plan.is_random, ended, seconds_since(begin)};
    (plan.is_random ? figures->at_random : figures->in_order).push_back(point);
    if (plan.is_random && plan.depth == 1) {
      std::nth_element(latencies.begin(), latencies.begin() + static_cast<ptrdiff_t>(latencies.size() / 2),
                       latencies.end());
      figures->start_us = latencies[latencies.size() / 2];
    }
    return {};
  }

  const std::string path_;
  const MeasureOptions& options_;
  std::shared_ptr<File> file_;
};

}  // namespace

base::Result<StorageFigures> measure_storage(const std::string& directory, const MeasureOptions& options) {
  if (options.file_bytes < kMiB || options.file_bytes % kMiB != 0)
    return base::invalid_argument("diskbench: file_bytes is {}, wanted a multiple of {}", options.file_bytes, kMiB);
  if (!(options.seconds > 0) || options.seconds > 600)
    return base::invalid_argument("diskbench: seconds is {}, wanted more than 0, at most 600", options.seconds);
  StorageFigures figures;
  Bench bench(base::format("{}/.overlace_diskbench.{}", directory, ::getpid()), options);
  OVERLACE_TRY(bench.run(&figures));
  return figures;
}

}  // namespace overlace::io
