// An artefact: a directory with all that training needs, made step by step; each step can be repeated or resumed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/gnn.h"
#include "src/base/mapped_file.h"
#include "src/base/status.h"
#include "src/gnn/dataset/dataset.h"
#include "src/gnn/levels/levels.h"
#include "src/gnn/pack/extent.h"
#include "src/gnn/sample/selection.h"
#include "src/gnn/sample/trace.h"
#include "src/gnn/store/manifest.h"
#include "src/gnn/store/plan_file.h"
#include "src/io/engine.h"

namespace overlace::gnn {

/// Whoever changes an artefact holds its lock; it goes with the process.
class ArtefactLock {
 public:
  /// Makes the directory where there is none. io, which names the other's process, where somebody else has it.
  static base::Result<std::unique_ptr<ArtefactLock>> take(const std::string& directory);
  ~ArtefactLock();
  ArtefactLock(const ArtefactLock&) = delete;
  ArtefactLock& operator=(const ArtefactLock&) = delete;

 private:
  explicit ArtefactLock(int fd) : fd_(fd) {}
  int fd_;
};

base::Result<Manifest> read_manifest(const std::string& directory);

/// A trace of an artefact, mapped.
class ArtefactTrace {
 public:
  /// corrupt where size or header do not fit the manifest. `is_whole` reads all of it and checks every index.
  static base::Result<ArtefactTrace> open(const std::string& directory, const TraceEntry& entry, bool is_whole);
  const TraceFile& trace() const { return trace_; }

 private:
  ArtefactTrace(std::shared_ptr<base::MappedFile> file, TraceFile trace)
      : file_(std::move(file)), trace_(std::move(trace)) {}
  std::shared_ptr<base::MappedFile> file_;
  TraceFile trace_;
};

/// What a loader goes through: the sampled epochs of train in a row, one trace of the other splits; of both the share
/// of one rank.
class SelectedTrace {
 public:
  /// Opens each trace by ArtefactTrace::open; corrupt where one is missing or has another number of batches than the
  /// first.
  static base::Result<SelectedTrace> open(const std::string& directory, const Manifest& manifest,
                                          const PackEntry& packs, bool is_whole);
  const InputTrace& trace() const { return *joined_; }
  /// Batches of a sampled epoch, for this rank.
  int64_t epoch_batches() const { return parts_.front()->num_batches(); }

 private:
  std::vector<std::unique_ptr<ArtefactTrace>> files_;
  std::vector<std::unique_ptr<TraceSelection>> parts_;  // of the files, the share of the rank
  std::unique_ptr<TraceSelection> joined_;              // of the parts
};

/// The plan of packs, checked against the manifest and the sizes of all files. stale: made of other inputs.
base::Result<PackPlan> open_plan(const std::string& directory, const Manifest& manifest, const PackEntry& entry);
std::string plan_path(const std::string& directory, const std::string& name);

/// Samples the splits and epochs that the artefact does not have yet. invalid_argument: the artefact is one of other
/// samples, a split without vertices, epochs outside 1 to kMaxSampledEpochs; stale: of another dataset.
inline constexpr int64_t kMaxSampledEpochs = 4096;
base::Result<Manifest> sample_artefact(const Dataset& dataset, const std::string& directory,
                                       const SampleRequest& request);

/// Packs all that is sampled for one order and number of ranks. What was packed before with the same request stays; a
/// run that was killed goes on where it was, and the files are the same for any number of runs. io where the disk has
/// not enough room, before the first byte. A dry run gives the manifest that it would come to; sizes of plan files are
/// not known then.
base::Result<Manifest> pack_artefact(const Dataset& dataset, const std::string& directory,
                                     const ArtefactPackRequest& request);

struct VerifyReport {
  int64_t files = 0, bytes = 0, extents = 0, pages = 0;
};
/// Reads all files and checks every checksum and index. With a dataset every packed byte is made anew and compared.
base::Result<VerifyReport> verify_artefact(const std::string& directory, const Dataset* deep,
                                           const StepProgress& progress = {});

/// Checks all packs as verify_artefact() does, and packs anew those that are missing, cut or damaged; their names. The
/// files are then those that were there first. Samples that are damaged are an error, as they cannot be made again
/// here. Errors as of both.
base::Result<std::vector<std::string>> repair_artefact(const Dataset& dataset, const std::string& directory,
                                                       int64_t memory_bytes = int64_t{1} << 30,
                                                       const StepProgress& progress = {});

}  // namespace overlace::gnn
