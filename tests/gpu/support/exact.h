// Calls of the dense operators on a GPU whose operands and wanted results are functions of rank, place and round:
// filled, called and compared on the device, in stream order, so that captured calls are too.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"
#include "tests/gpu/support/operands.h"

namespace overlace::test {

struct ExactProblem {
  std::string op = "gemm_rs", family = "serial";
  int degree = 1;
  int64_t m = 256, n = 64, k = 64;
  DType dtype = DType::bf16;
  spec::BLayout layout = spec::BLayout::nk;
  bool bias = false;
  std::vector<int64_t> offsets{};
  int64_t look_every = 1;  // row of the result: large problems are looked at in part, other rows in each round

  std::string text() const;
};

spec::OpSpec op_spec_of(const ExactProblem& problem, int ranks);

/// Device memory of one rank for the operands of a problem, or of any smaller one.
class ExactMemory {
 public:
  /// Allocated and freed in the order of `stream`, without waiting for the device.
  ExactMemory(cudaStream_t stream, const ExactProblem& largest);
  ~ExactMemory();
  ExactMemory(const ExactMemory&) = delete;
  ExactMemory& operator=(const ExactMemory&) = delete;
  bool holds(const ExactProblem& problem) const;

  void *a = nullptr, *b = nullptr, *out = nullptr, *bias = nullptr;
  uint64_t *round = nullptr, *wrong = nullptr;  // words of the device

 private:
  struct Bytes {
    int64_t a, b, out, bias;
  };
  static Bytes need_of(const ExactProblem& problem);

  cudaStream_t stream_;
  Bytes room_{};
  std::vector<void*> all_;
};

/// One rank's operands and call. All ranks make the same calls.
class ExactSite {
 public:
  ExactSite(Channel& channel, const ExactProblem& problem, std::shared_ptr<ExactMemory> memory = nullptr);
  /// Why this schedule does not run here, "" if it does.
  std::string why_not() const;
  const ExactProblem& problem() const { return problem_; }
  const spec::Schedule& schedule() const { return schedule_; }

  /// On the channel's stream, capturable: operands of the next round, an output that is no number, run(), and a look at
  /// the result. Throws what run() throws.
  void call();
  /// The operator alone.
  void run();
  /// A call as one rank gets it wrong: with 32-bit integers.
  void run_with_a_wrong_a();
  /// Elements that were wrong in all calls so far. Waits for the stream.
  uint64_t wrong();

 private:
  void run(const TensorView& a);
  cudaStream_t stream() const { return static_cast<cudaStream_t>(channel_.stream().cuda_stream); }

  Channel& channel_;
  ExactProblem problem_;
  ExactPod pod_;
  std::shared_ptr<ExactMemory> memory_;
  TensorView a_, b_, out_, bias_;
  spec::Schedule schedule_;
};

/// A captured call or several, ready to be replayed on the stream that it was captured on.
class Replay {
 public:
  /// Captures what `body` queues on `stream`. Throws what `body` throws, and the capture is ended.
  Replay(cudaStream_t stream, const std::function<void()>& body);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  void launch();

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace overlace::test
