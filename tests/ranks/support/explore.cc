#include "tests/ranks/support/explore.h"

#include <barrier>
#include <cstring>
#include <memory>
#include <vector>

#include "src/base/format.h"
#include "src/runtime/backend/cpu/agent.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

using runtime::Choices;
using runtime::CpuAgent;
using runtime::Explorer;

/// The filter, then the explorer.
class Filtered final : public runtime::Observer {
 public:
  Filtered(runtime::Observer* filter, Explorer& explorer) : filter_(filter), explorer_(explorer) {}
  bool before(const runtime::Step& step) override {
    return (filter_ == nullptr || filter_->before(step)) && explorer_.before(step);
  }
  std::optional<Errc> wait(const runtime::Step& step, const runtime::WaitSite& site,
                           const std::function<bool()>& ready) override {
    return explorer_.wait(step, site, ready);
  }
  std::optional<size_t> pick(int rank, size_t n) override { return explorer_.pick(rank, n); }

 private:
  runtime::Observer* const filter_;
  Explorer& explorer_;
};

/// Clears what a runtime has as it is after open: nothing was ever signalled.
void clear(Runtime& runtime) {
  CpuAgent& agent = *runtime::cpu_agent(runtime);
  char* const own = agent.bases[static_cast<size_t>(agent.rank)];
  std::memset(own + agent.layout.slots.offset, 0, agent.layout.slots.bytes);
  std::fill(agent.sent.begin(), agent.sent.end(), 0);
  std::fill(agent.tickets.begin(), agent.tickets.end(), 0);
  std::memset(own + agent.layout.user.offset, 0xff, runtime.heap().in_use());
}

/// All ranks of a walk.
class Walk {
 public:
  explicit Walk(const ExploreOptions& options)
      : options_(options), explorer_(make_explorer()), meeting_(options.ranks, Judge{this}) {
    said_.resize(static_cast<size_t>(options.ranks));
  }

  void run_rank(Runtime& runtime, const std::function<Protocol(Runtime&)>& make) {
    try {
      walk(runtime, make);
    } catch (...) {
      is_over_ = true;
      meeting_.arrive_and_drop();  // or the others would wait for this rank forever
      throw;
    }
  }

  ExploreReport report;

 private:
  void walk(Runtime& runtime, const std::function<Protocol(Runtime&)>& make) {
    const Protocol protocol = make(runtime);
    const int rank = runtime.world().rank();
    std::string& said = said_[static_cast<size_t>(rank)];
    runtime.synchronize();  // what make() has sent has arrived
    runtime.world().barrier();
    while (!is_over_) {
      clear(runtime);
      meet();
      explorer_->attach(runtime);
      Filtered filtered(options_.filter, *explorer_);
      runtime::observe(runtime, &filtered);
      meet();
      explorer_->enter(rank);
      try {
        said = protocol();
      } catch (const std::exception& error) {
        said = error.what();
      }
      explorer_->leave(rank);
      meet();
      said += unconsumed(runtime);
      runtime::observe(runtime, nullptr);
      is_judging_ = true;
      meet();
    }
    explorer_->detach(runtime);
  }

  /// Runs once all ranks have arrived, on one of them.
  struct Judge {
    Walk* walk;
    void operator()() const noexcept { walk->judge(); }
  };

  void meet() { meeting_.arrive_and_wait(); }

  std::unique_ptr<Explorer> make_explorer() const {
    const Choices choices =
        options_.num_seeds == 0 ? Choices::all() : Choices::of_seed(options_.first_seed + report.paths);
    return std::make_unique<Explorer>(options_.ranks, choices, options_.max_steps);
  }

  static std::string unconsumed(Runtime& runtime) {
    try {
      runtime.check_quiescent();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  void judge() {
    if (!is_judging_.exchange(false)) return;
    std::string failure = explorer_->failure();
    for (const std::string& said : said_)
      if (failure.empty()) failure = said;
    if (!failure.empty()) {
      report.failure = failure;
      if (options_.num_seeds != 0) report.failure += base::format("\nseed {}", options_.first_seed + report.paths);
      report.failure += "\n" + explorer_->path();
    }
    ++report.paths;
    report.longest = std::max(report.longest, explorer_->steps());
    const bool has_next = explorer_->next();
    const bool is_exhaustive = options_.num_seeds == 0;
    report.is_complete = is_exhaustive && !has_next && failure.empty();
    is_over_ = !failure.empty() || report.paths == (is_exhaustive ? options_.max_paths : options_.num_seeds) ||
               (is_exhaustive && !has_next);
    if (!is_exhaustive && !is_over_) explorer_ = make_explorer();
  }

  const ExploreOptions options_;
  std::unique_ptr<Explorer> explorer_;
  std::barrier<Judge> meeting_;
  std::vector<std::string> said_;  // by rank
  std::atomic<bool> is_judging_{false}, is_over_{false};
};

}  // namespace

ExploreReport explore(const ExploreOptions& options, const std::function<Protocol(Runtime&)>& make) {
  RankOptions rank_options;
  rank_options.heap_bytes = options.heap_bytes;
  rank_options.num_signal_ids = 128;
  rank_options.net_engine = "none";
  rank_options.checks_end = false;
  rank_options.adversary = AdversaryOptions::parse(
      base::format("seed=1,delay_us=0,window=1024,pieces={},workers={}", options.pieces, options.workers));
  Walk walk(options);
  run_ranks(
      options.ranks, Mode::threads,
      [&](Runtime& runtime) {
        walk.run_rank(runtime, make);
        try {
          runtime.world().barrier();
          runtime.close();
        } catch (const Error&) {
          // A protocol that failed may have aborted its runtime.
          if (walk.report.failure.empty()) throw;
        }
      },
      rank_options);
  return walk.report;
}

}  // namespace overlace::test
