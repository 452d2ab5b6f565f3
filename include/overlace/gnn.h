// Graph networks whose features do not fit in memory: batches are sampled first, their rows packed in the order of use,
// and read ahead of who trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace overlace::gnn {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// What training, the choice of its best state and the final figure take. The values stand in files.
enum class Split : uint32_t { train = 0, valid = 1, test = 2 };
inline constexpr Split kSplits[] = {Split::train, Split::valid, Split::test};

/// What a cache in the CPU's memory keeps. hottest: the rows that most batches need. belady: those that are needed
/// soonest, as the sequence of batches is known.
enum class CachePolicy : uint8_t { none, hottest, lru, belady };

/// fixed: the same each training epoch. segments: the sequence inside a segment is fixed, segments are shuffled.
/// shuffle: any sequence, which only a cache that never changes allows.
enum class BatchOrder : uint8_t { fixed, segments, shuffle };
struct OrderChoice {
  BatchOrder order = BatchOrder::fixed;
  int64_t segment_batches = 0;  // batches of a segment, with `segments`
};

/// The progress of a long step: what is done now, and how much of it, 0 to 1. May throw, which ends the step.
using StepProgress = std::function<void(std::string_view what, double share)>;

/// A graph that is drawn, with features and labels.
struct GenerateOptions {
  std::string model = "dcsbm";     // dcsbm or rmat
  int64_t num_vertices = 1 << 16;  // rmat: a power of two
  int64_t edges_per_vertex = 16;   // drawn; both directions are stored
  int64_t dim = 128, num_classes = 32, communities = 256;
  double alpha = 2.0;                              // the weights are drawn with it: P(w > x) = x^(1 - alpha)
  double weight_cap = 4;                           // largest weight, in sqrt(N)
  double inside = 0.6;                             // share of edges inside a community
  double train = 0.15, valid = 0.05, test = 0.10;  // shares of the vertices with an edge
  uint64_t seed = 1;
  int64_t memory_bytes = int64_t{1} << 30;
  int threads = 0;
  std::function<void(double share)> progress = {};  // called from one thread
};

struct SamplerOptions {
  std::vector<int32_t> fanouts;  // from the seeds outward; -1: all in-neighbours, 0: none
  int64_t batch_size = 1024;     // seeds of a batch
  uint64_t seed = 0;
  bool replace = false;  // draws may repeat an edge; a vertex with in-neighbours then has exactly `fanout` of them
};

struct SampleRequest {
  SamplerOptions sampler;
  std::vector<Split> splits = {Split::train};
  int64_t epochs = 1;  // passes over train, each sampled anew; training takes them in turn
  int threads = 0;     // 0: the cores; the traces do not depend on it
  StepProgress progress = {};
};

struct ArtefactPackRequest {
  CachePolicy policy = CachePolicy::belady;
  int64_t gpu_bytes = 0, cpu_bytes = 0;  // sizes of the caches
  int64_t disk_bytes = 0;                // for packs and disk cache; 0: as many as there are
  int64_t page_bytes = 4096;
  bool is_automatic_order = true;
  OrderChoice order = {};
  int depth = 3;
  int64_t ranks = 1;  // that train together, each from packs and with caches of its own
  int64_t memory_bytes = int64_t{1} << 30;
  bool is_dry = false;  // counts bytes, exactly, and writes nothing
  StepProgress progress = {};
};

/// Makes a directory and a dataset in it. Throws InvalidArgument with name and value, before anything is written, for
/// options and for a directory that has a dataset; IoError.
void make_dataset(const GenerateOptions& options, const std::string& directory);
/// Samples the splits and epochs of a dataset that the artefact, a directory, does not have yet. Throws InvalidArgument
/// for an artefact of other samples or a split without vertices; IoError, with the other's process where somebody else
/// changes the artefact, and for one of another dataset.
void make_samples(const std::string& dataset, const std::string& artefact, const SampleRequest& request);
/// Packs all that is sampled for one order and number of ranks. What was packed before with the same request stays, and
/// a run that was killed goes on where it was. Throws InvalidArgument; IoError, before the first byte where the disk
/// has not enough room.
void make_packs(const std::string& dataset, const std::string& artefact, const ArtefactPackRequest& request);
/// Reads all files and checks every checksum and index. With a dataset every packed byte is made anew and compared.
/// Throws IoError with file and place of what is wrong.
void verify(const std::string& artefact, const std::string& dataset = "");

/// Checks all packs and packs anew, from the dataset, those that are missing, cut or damaged. Returns their names.
/// Throws IoError for samples that are damaged, and what make_packs() throws.
std::vector<std::string> repair(const std::string& artefact, const std::string& dataset);

/// Batches in local ids: vertex i of it is inputs[i] of the graph. Seeds come first. reached[h] vertices are known
/// after h hops; the in-neighbours of vertex i are indices[indptr[i]] to indices[indptr[i + 1]].
struct BatchView {
  std::span<const uint32_t> inputs, reached, indptr, indices;
  int64_t num_seeds() const { return reached.empty() ? 0 : reached[0]; }
};

/// Valid until it is released. With a loader on a device `rows` and what follows it there lie in the device's memory.
struct LoadedBatch {
  int64_t number = 0;               // in the trace of its sampled epoch
  int64_t sampled_epoch = 0;        // 0 for all splits but train
  bool is_repeated = false;         // a batch of the first ranks once more, so that all ranks do as many steps
  int64_t position = 0;             // in the training epoch
  BatchView blocks;                 // on the host
  std::span<const int32_t> labels;  // classes of the seeds, -1: none; on the host
  std::span<const std::byte> rows;  // (input rows, row_bytes), in the order of blocks.inputs
  /// What trainers take: vertex of each row; (2, edges), from and to; class of each seed.
  std::span<const int64_t> ids, edges, classes;
  int64_t bytes = 0;  // from the first row to behind `classes`: one piece of memory
};

struct LoaderStats {
  int64_t batches = 0, bytes_read = 0, requests = 0, read_again = 0;
  int64_t gpu_rows = 0, cpu_rows = 0, ring_rows = 0, admitted = 0;  // gathered from each level; entered the CPU cache
  double read_s = 0;                                                // with reads under way, of those that have ended
  double verify_s = 0, gather_s = 0, admit_s = 0;                   // that the stages worked
  double waited_s = 0;                                              // that next() waited
  int64_t mended_rows = 0;  // that came from the dataset, as those of the packs were damaged
};

struct PackedLoaderOptions {
  std::string packs = {};  // name of the packs, without the rank; empty: the first ones of `split`
  Split split = Split::train;
  int64_t rank = 0, ranks = 1;  // whose share of the batches
  uint64_t order_seed = 0;      // decides the sequence of segments or batches
  int64_t memory_bytes = 0;     // that may be taken at open; 0: no limit
  std::string engine = {};      // auto, uring, pread or buffered; empty: OVERLACE_IO
  bool checks_sums = true;      // indices are checked in any case
  /// Directory of the dataset, from which rows come whose checksum is wrong twice; empty: then an error is thrown.
  std::string source = {};
  int64_t pace_bytes_per_s = 0;  // a slower disk that is played; 0: the disk as it is
  std::optional<int> gpu = {};   // CUDA ordinal of the GPU that has the GPU's cache and gathers; none: on CPUs
};

/// The batches of packs with their rows, used by one thread. Rows are those of the dataset, or an error is thrown.
class PackedLoader {
 public:
  /// Opens the packs and takes all memory. Throws InvalidArgument where there are no such packs; OutOfMemory with a
  /// list of what takes how much; IoError with file and field for an artefact that is damaged or of another dataset;
  /// Unsupported without such a GPU.
  explicit PackedLoader(const std::string& artefact, const PackedLoaderOptions& options = {});
  /// Ends the training epoch that is under way.
  ~PackedLoader();
  PackedLoader(PackedLoader&&) noexcept;
  PackedLoader& operator=(PackedLoader&&) noexcept;

  /// Batches of a training epoch.
  int64_t num_batches() const;
  int64_t num_classes() const;
  int64_t dim() const;
  /// Returns the type of features: "fp32", "fp16", "bf16" or "i8".
  std::string dtype() const;
  int64_t row_bytes() const;
  /// Training epoch n has the batches of sampled epoch n mod sampled_epochs().
  int64_t sampled_epochs() const;
  /// Bytes of the host, and of the GPU, that were taken.
  int64_t memory_bytes() const;
  int64_t device_bytes() const;

  /// Begins a training epoch at the batch of this position; one that is under way ends. What comes is a function of
  /// artefact, order_seed, epoch and position alone. Throws InvalidArgument for a position that the epoch does not
  /// have; Timeout if a GPU is not done with what it was given for the one before.
  void start(int64_t epoch, int64_t position = 0);
  /// Sets the stream that uses batches from now on, a cudaStream_t. next() lets it wait for the batch; what it was
  /// given before release() or start() still reads the batch. Does nothing without a GPU.
  void use_stream(void* stream);
  /// Returns the next batch, nothing at the end. Waits for it, until the deadline. Throws IoError with file and place
  /// where bytes are not what was packed, Timeout with the stage that is late, InvalidArgument if three batches are not
  /// released. The loader can start() again after each of them.
  std::optional<LoadedBatch> next();
  /// Releases the oldest batch that next() gave.
  void release();
  /// Returns counters since start().
  LoaderStats stats() const;
  /// Writes what each stage did when since start(), as a timeline: .json of Chrome or .pftrace of Perfetto.
  void trace(const std::string& path) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

#pragma GCC visibility pop

}  // namespace overlace::gnn
