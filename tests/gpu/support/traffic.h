// What one rank on a GPU does, step by step, as a program would: new and known shapes on two channels, captured graphs
// that come and go, collectives of another communicator and heavy copies on streams of their own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/gpu/support/exact.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/ranks/support/dice.h"

namespace overlace::test {

/// One rank. All ranks make the same steps, drawn from one seed; when it queues what stands beside them, and how long
/// it hesitates, is its own.
class GpuTraffic {
 public:
  /// Collective.
  GpuTraffic(GpuRank& gpu, uint64_t seed);
  ~GpuTraffic();
  GpuTraffic(const GpuTraffic&) = delete;
  GpuTraffic& operator=(const GpuTraffic&) = delete;

  /// Throws what the operators throw.
  void step();
  /// Waits for all streams; all results were exact, nothing is left over. In words what is wrong, or "".
  std::string settle();
  const std::map<std::string, int64_t>& counts() const { return counts_; }
  /// The last steps, oldest first, one per line: what stood on the streams when a step failed.
  std::string history() const;

 private:
  struct Graph {
    std::vector<std::shared_ptr<ExactSite>> sites;  // their memory is the graph's, too
    std::unique_ptr<Replay> replay;                 // first to go
  };
  /// A channel on a stream of its own with a part of the SMs.
  struct Road {
    cudaStream_t stream;
    Channel* channel;
    std::vector<std::shared_ptr<ExactSite>> known{};
    std::vector<Graph> graphs{};
  };

  enum class Kind { call_new, call_known, capture, replay, destroy_graph, refuse };
  static Kind possible(Kind kind, const Road& on);
  void act(Kind kind, Road& on);
  void call_new(Road& on);
  void call_known(Road& on);
  void capture(Road& on);
  void replay(Road& on);
  void destroy_graph(Road& on);
  void refuse(Road& on);
  void sum_beside();
  void beside();
  void settle_if_shared();
  void note(std::string what);
  void note(const Road& on, std::string_view what, const ExactSite& site);

  Road& road() { return roads_[index(roads_.size())]; }
  size_t index(size_t size) { return static_cast<size_t>(dice_.number(0, static_cast<int64_t>(size) - 1)); }
  /// A problem that this channel runs.
  ExactProblem draw(Channel& channel);
  std::shared_ptr<ExactSite> make(Road& on);
  /// Waits for the stream and forgets the site; remembers what was wrong.
  void retire(std::shared_ptr<ExactSite>& site);
  bool all(bool mine);

  GpuRank& gpu_;
  Dice dice_, own_dice_;
  std::vector<Road> roads_;
  Team second_;  // with a communicator of its own
  const bool shares_gpu_;
  cudaStream_t sums_ = nullptr, copies_ = nullptr;
  float* addends_ = nullptr;
  char *from_ = nullptr, *to_ = nullptr;
  uint64_t* wrong_ = nullptr;  // sums, copies
  uint32_t sum_rounds_ = 0, copy_rounds_ = 0;
  uint64_t wrong_in_calls_ = 0;
  std::string first_wrong_;
  std::map<std::string, int64_t> counts_;
  std::deque<std::string> history_;
};

}  // namespace overlace::test
