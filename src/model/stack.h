// This rank's part of a stack of sequence-parallel tensor-parallel decoder layers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/schedule.h"
#include "src/base/status.h"
#include "src/base/trace.h"
#include "src/model/config.h"

namespace overlace::model {

struct Problem {
  int64_t layers = 1;
  int64_t tokens = 0;           // of the whole team; rows are token-major, sequence after sequence
  int64_t sequence_length = 0;  // tokens is a multiple of it; attention is causal within a sequence
  DType dtype = DType::fp32;
  uint64_t seed = 0;
  std::string checkpoint;  // directory with safetensors; empty: seeded normal weights
  /// Tokens that walk through a layer together, a multiple of sequence_length; 0: all. Sites are of so many.
  int64_t micro_batch = 0;
  int64_t device_bytes = 0;  // that a rank may use for weights and activations; 0: as many as they take
  bool from_disk = false;    // what does not fit streams from the checkpoint's files, not from host memory
};

/// One GEMM with a collective: "qkv", "o_proj", "gate_up" (or "fc1"), "down" (or "fc2"); the same in every layer that
/// has it. A layer with experts has the first two, Part::moe none.
struct Site {
  std::string name;
  spec::OpSpec op;                      // as this rank sees it
  int64_t first_layer = 0, layers = 1;  // of the problem: the first that has it, and how many do
};

/// invalid_argument naming both numbers where the split is impossible (heads % ranks, intermediate % ranks, ...).
base::Result<std::vector<Site>> sites(const ModelConfig& config, const Problem& problem, int ranks);

using SiteSchedules = std::map<std::string, spec::Schedule, std::less<>>;

struct WeightStats;      // src/model/layer_stream.h
struct ActivationStats;  // src/model/activation_stream.h

/// Rows of the (tokens, hidden) hidden states that belong to `rank` (torch.tensor_split).
std::pair<int64_t, int64_t> token_rows(int64_t tokens, int rank, int ranks);

/// Hidden states before the first layer where no file gives them: normal(0, 1), a pure function of (seed, row, column).
void seeded_input(uint64_t seed, int64_t first_row, int64_t rows, int64_t hidden, float* out);

/// Traced with its channel (exec::set_trace): spans of operators bear their site's name, and what is computed between
/// operators is there too.
class Stack {
 public:
  /// Loads or makes this rank's weights on the channel's device. Collective only in that all ranks call it. Calls
  /// `on_layer` whenever the weights of another layer lie where they stay; those from disk do from the beginning.
  static base::Result<std::unique_ptr<Stack>> create(const ModelConfig& config, const Problem& problem,
                                                     Channel& channel, const std::function<void()>& on_layer = {});
  virtual ~Stack() = default;
  /// input, output: my rows x hidden, fp32 on the host: token_rows of each micro-batch, one behind the other. All
  /// layers. With Part::moe each block of experts gets the input, and the output is the sum of what they give.
  virtual base::Status forward(const float* input, const SiteSchedules& schedules, float* output) = 0;
  /// Only that site's operator of the first layer that has it, on inputs as they were in the last forward (normal data
  /// before the first), queued `iterations` times; for timing. Does not wait for completion on GPUs.
  virtual base::Status run_site(const std::string& name, const spec::Schedule& schedule, int iterations) = 0;
  /// Only the block of experts of the first layer that has them, router and exchange too, on such inputs, `iterations`
  /// times; for timing. Returns the copies of tokens that my experts computed in one. Collective.
  virtual base::Result<int64_t> run_experts(int iterations) = 0;
  /// Forward without host transfers, queued `iterations` times on resident input; for timing.
  virtual base::Status run_layers(const SiteSchedules& schedules, int iterations) = 0;
  /// Waits for all queued work of this rank.
  virtual base::Status synchronize() = 0;
  /// What computed the last attention (Device::attention_by).
  virtual std::string attention_by() const = 0;
  /// Since the stack was made. On GPUs times are of what the device has passed.
  virtual WeightStats weight_stats() const = 0;
  virtual ActivationStats activation_stats() const = 0;
  /// The experts that my tokens chose in the last pass, (layers, my rows, experts of a token); rows are those of
  /// forward(). -1 in layers without experts; empty where no layer has any.
  virtual const std::vector<int32_t>& expert_choices() const = 0;
  /// Spans of what came into slots or left them since the last call; for timelines. On GPUs none at the first call,
  /// and the device is synchronised.
  virtual base::Result<std::vector<base::Span>> take_transfers() = 0;
};

/// Choices of experts. Rounding may change a choice where two experts are nearly alike, so that values are compared
/// along the choice of a run, and that choice apart.
struct ExpertChoices {
  std::vector<int32_t> experts{};  // (layers, tokens, experts of a token) that a run chose; empty: the oracle chooses
  /// What the oracle finds: by how much a choice misses the largest logits, at most, in units of the logits' rms.
  /// Infinite where it is no choice of different experts.
  double gap = 0;
};

/// fp64 oracle of the whole stack from the same (dtype-rounded) weights and input: tokens x hidden. On `device` >= 0
/// with CUDA, else on the CPU with `threads` threads. `aborted` soon after `stop` is requested. `layers_done`, where
/// given, counts meanwhile.
base::Result<std::vector<double>> oracle(const ModelConfig& config, const Problem& problem,
                                         const std::vector<float>& input, int device, int threads,
                                         std::stop_token stop = {}, ExpertChoices* choices = nullptr,
                                         std::atomic<int64_t>* layers_done = nullptr);

}  // namespace overlace::model
