// Batches of an artefact with their features, read ahead of who trains: the disk is busy while the trainer computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "overlace/gnn.h"
#include "src/base/status.h"
#include "src/base/trace.h"
#include "src/gnn/pipeline/loader_device.h"
#include "src/gnn/pipeline/output.h"
#include "src/gnn/rows/row_store.h"
#include "src/gnn/sample/trace.h"
#include "src/gnn/store/artefact.h"
#include "src/io/alignment.h"
#include "src/io/engine.h"
#include "src/io/stream.h"

namespace overlace::gnn {

/// What happens to a batch, in this order; each stage has a thread of its own, the last is the caller.
enum class Stage { read, verify, gather, admit, train };

struct LoaderOptions {
  std::string packs = {};  // name of the packs; empty: the first ones of `split`
  Split split = Split::train;
  int64_t rank = 0, ranks = 1;  // whose share of the batches; `packs` may then be named without the rank
  uint64_t order_seed = 0;      // of the sequence of segments or batches
  int64_t memory_bytes = 0;     // that may be taken at open; 0: no limit
  io::EngineOptions io = {};
  bool checks_sums = true;  // of what is read; indices are checked in any case
  std::string source = {};  // directory of the dataset whose rows replace damaged ones; empty: an error comes
  /// Blocks of the device's kernel at most where rows come over the link, so that it leaves the rest of the device to
  /// who trains. Each has 16 KiB under way.
  int gather_ctas = 64;
  /// Rows of the GPU's cache lie there and batches are gathered there; null: by CPUs, in memory of the host.
  std::shared_ptr<LoaderDevice> device = {};
  std::function<void(Stage stage, int64_t item)> before = {};  // tests delay a stage with it; any thread
};

/// Bytes of what a loader allocates at open. gpu_cache is memory of the device where there is one, else of the host.
struct LoaderBytes {
  int64_t gpu_cache = 0, cpu_cache = 0, ring = 0, restore = 0, outputs = 0;
  int64_t device_ring = 0, device_outputs = 0;
  bool is_on_device = false;
  int64_t host() const { return (is_on_device ? 0 : gpu_cache) + cpu_cache + ring + restore + outputs; }
  int64_t device() const { return is_on_device ? gpu_cache + device_ring + device_outputs : 0; }
};

/// Memory of a loader, allocated once.
struct LoaderBuffers {
  static constexpr int64_t kOutputs = 3;
  io::Ring ring, outputs;  // of extents with their pages; of what consumers get, or a device on their behalf
  io::AlignedBuffer restore, gpu, cpu;
  int64_t extent_room = 0;  // of a slot of the ring, in front of its pages
  OutputRoom room;          // of an output
  // Memory of the device, where there is one; its ring has as many slots, of the rows that an item has read.
  std::byte *device_cache = nullptr, *device_ring = nullptr, *device_outputs = nullptr;
  std::vector<uint32_t> device_row;  // of each row of the GPU's cache: there they lie by vertex, as in their file
};

class Epoch;

/// One thread calls it. Rows are those of the dataset, or an error is: corrupt, stale or io with file and place, after
/// which the loader can begin another training epoch.
class Loader {
 public:
  /// out_of_memory lists what is needed where memory_bytes does not suffice; invalid_argument: no such packs.
  static base::Result<std::unique_ptr<Loader>> open(const std::string& directory, LoaderOptions options = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  const Manifest& manifest() const { return manifest_; }
  const PackPlan& plan() const { return plan_; }
  /// The name of the packs.
  const std::string& packs() const { return options_.packs; }
  const LoaderBytes& bytes() const { return bytes_; }

  /// Where the consumer's memory is: rows and arrays of all batches lie in it.
  std::span<const std::byte> outputs() const;
  /// Batches of a training epoch.
  int64_t num_batches() const { return plan_.epoch_batches; }
  /// Begins a training epoch at the batch of this position; one that is under way ends. What comes is a function of
  /// artefact, order_seed, epoch and position alone: training epoch n has the batches of sampled epoch n mod E. With
  /// the order `fixed`, whose cache goes through all E in a row, batches before this one are read again unless the
  /// epoch before has just ended.
  base::Status start(int64_t epoch, int64_t position = 0);
  /// Sets the stream that uses batches of a loader on a device from now on. next() lets it wait for the batch, the host
  /// does not; what it was given before release() or start() still reads the batch. Another stream is set behind the
  /// release() of all that the one before reads, or behind start(), and in front of next().
  void use_stream(void* stream);
  /// The next batch; nothing at the end. Waits; timeout names the stage that it waits for. invalid_argument: as many
  /// batches as there are outputs are not released.
  base::Result<std::optional<LoadedBatch>> next();
  /// The oldest batch that next() gave is not used any more.
  void release();
  /// Since start().
  LoaderStats stats() const;
  /// What each stage did when since start(), of what has ended (Epoch::timeline).
  base::Trace timeline() const;

 private:
  Loader(std::string directory, LoaderOptions options);
  base::Status open_source();
  base::Status allocate();
  base::Status allocate_on_device(const std::string& list);
  base::Status load_caches();

  std::string directory_;
  LoaderOptions options_;
  Manifest manifest_;
  PackPlan plan_;
  int64_t trace_batches_ = 1;  // of a sampled epoch, of all ranks
  LoaderBytes bytes_;
  LoaderBuffers buffers_;
  std::shared_ptr<LoaderDevice> device_;  // goes before the memory that it has pinned
  std::shared_ptr<io::File> packs_, pages_;
  std::unique_ptr<io::IoEngine> engine_;
  std::unique_ptr<RowStore> source_;  // null: options_.source is empty
  static constexpr int64_t kNowhere = -1;
  /// Batch of the cycle before which the CPU cache holds what it holds now.
  int64_t cache_at_ = kNowhere, cache_after_ = kNowhere;  // after the epoch that is under way
  std::unique_ptr<Epoch> epoch_;
};

}  // namespace overlace::gnn
