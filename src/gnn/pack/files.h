// Traces and packs as files. A file has its name only once all of it lies on the disk; until then it ends in `.part`.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/gnn/pack/packer.h"
#include "src/gnn/sample/trace.h"
#include "src/io/engine.h"
#include "src/io/stream.h"

namespace overlace::gnn {

/// A file that is written from one end to the other.
class FileSink final : public ByteSink {
 public:
  /// The engine must outlive it and serve nobody else meanwhile.
  static base::Result<std::unique_ptr<FileSink>> create(io::IoEngine* engine, const std::string& path);
  base::Status append(std::span<const std::byte> bytes) override { return writer_->append(bytes); }
  /// Gives the file its name.
  base::Status finish();

 private:
  FileSink(std::string path, std::unique_ptr<io::StreamWriter> writer)
      : path_(std::move(path)), writer_(std::move(writer)) {}
  std::string path_;
  std::unique_ptr<io::StreamWriter> writer_;
};

/// The rows of a features.npy, past the page cache where the disk allows it.
class FeatureFile final : public RowSource {
 public:
  static base::Result<std::unique_ptr<FeatureFile>> open(io::IoEngine* engine, const std::string& path,
                                                         int64_t data_offset, int64_t row_bytes);
  base::Status read(int64_t first, int64_t count, std::span<std::byte> out) override;

 private:
  FeatureFile(io::IoEngine* engine, std::shared_ptr<io::File> file, int64_t data_offset, int64_t row_bytes)
      : engine_(engine), file_(std::move(file)), data_offset_(data_offset), row_bytes_(row_bytes) {}
  io::IoEngine* engine_;
  std::shared_ptr<io::File> file_;
  int64_t data_offset_, row_bytes_;
};

/// `packs-<name>.ovk`, `dcache-<name>.ovd` and `hot-<name>.ovh` of a directory.
class PackFiles final : public PackStore {
 public:
  /// `goes_on`: what an earlier run has written stays; io where there is nothing.
  static base::Result<std::unique_ptr<PackFiles>> create(const std::string& directory, const std::string& name,
                                                         bool goes_on = false);
  /// Room on the disk, by PackFile; io where there is not enough.
  base::Status allocate(const int64_t (&bytes)[3]);
  ~PackFiles() override;
  /// Returns once the bytes are taken over; sync() and finish() wait for them, and give the first failure.
  base::Status write(PackFile file, int64_t offset, std::span<const std::byte> bytes) override;
  /// All that was written lies on the disk.
  base::Status sync();
  /// Checks sizes, waits for the disk, gives the files their names.
  base::Status finish(const PackResult& packed);
  static std::string path(const std::string& directory, PackFile file, const std::string& name);

 private:
  PackFiles(std::string directory, std::string name) : directory_(std::move(directory)), name_(std::move(name)) {}
  /// Waits until the next slot of the ring is free, or until all are.
  base::Status make_room(bool all);
  std::string directory_;
  std::string name_;
  std::array<std::shared_ptr<io::File>, 3> files_;
  io::Ring ring_;  // copies of bytes under way
  std::vector<bool> is_busy_;
  size_t slot_ = 0;
  PackFile last_ = PackFile::packs;
  base::Status failure_;
  std::unique_ptr<io::IoEngine> engine_;  // its own; it goes before the ring
};

}  // namespace overlace::gnn
