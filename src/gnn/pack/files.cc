#include "src/gnn/pack/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "src/base/file.h"

namespace overlace::gnn {
namespace {

constexpr size_t kSlots = 16;
constexpr int64_t kSlotBytes = int64_t{1} << 20;

std::string part_of(const std::string& path) { return path + ".part"; }

/// The file's bytes lie on the disk already; so does its name afterwards.
base::Status give_name(const std::string& path) {
  if (std::rename(part_of(path).c_str(), path.c_str()) != 0)
    return base::error(Errc::io, "{}: rename to {}: {}", part_of(path), path, std::strerror(errno));
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return base::sync_directory(directory.empty() ? "." : directory);
}

}  // namespace

base::Result<std::unique_ptr<FileSink>> FileSink::create(io::IoEngine* engine, const std::string& path) {
  auto file = engine->open_file(part_of(path), io::FileMode::create);
  if (!file.ok()) return file.status();
  auto writer = io::StreamWriter::open(engine, *file);
  if (!writer.ok()) return writer.status();
  return std::unique_ptr<FileSink>(new FileSink(path, std::move(*writer)));
}

base::Status FileSink::finish() {
  OVERLACE_TRY(writer_->finish());
  return give_name(path_);
}

base::Result<std::unique_ptr<FeatureFile>> FeatureFile::open(io::IoEngine* engine, const std::string& path,
                                                             int64_t data_offset, int64_t row_bytes) {
  auto file = engine->open_file(path, io::FileMode::read);
  if (!file.ok()) return file.status();
  return std::unique_ptr<FeatureFile>(new FeatureFile(engine, std::move(*file), data_offset, row_bytes));
}

base::Status FeatureFile::read(int64_t first, int64_t count, std::span<std::byte> out) {
  OVERLACE_TRY(engine_->read(file_, data_offset_ + first * row_bytes_, count * row_bytes_, out, 0));
  return engine_->settle();
}

std::string PackFiles::path(const std::string& directory, PackFile file, const std::string& name) {
  constexpr std::array<const char*, 3> kFileNames = {"packs", "dcache", "hot"}, kEnds = {"ovk", "ovd", "ovh"};
  const auto i = static_cast<size_t>(file);
  return base::format("{}/{}-{}.{}", directory, kFileNames[i], name, kEnds[i]);
}

base::Result<std::unique_ptr<PackFiles>> PackFiles::create(const std::string& directory, const std::string& name,
                                                           bool goes_on) {
  std::unique_ptr<PackFiles> out(new PackFiles(directory, name));
  auto engine = io::IoEngine::open();
  if (!engine.ok()) return engine.status();
  out->engine_ = std::move(*engine);
  auto ring = io::Ring::make(kSlots, kSlotBytes);
  if (!ring.ok()) return ring.status();
  out->ring_ = std::move(*ring);
  out->is_busy_.resize(kSlots);
  const io::FileMode mode = goes_on ? io::FileMode::write : io::FileMode::create;
  for (size_t i = 0; i < out->files_.size(); ++i) {
    auto file = out->engine_->open_file(part_of(path(directory, static_cast<PackFile>(i), name)), mode);
    if (!file.ok()) return file.status();
    out->files_[i] = std::move(*file);
  }
  return out;
}

PackFiles::~PackFiles() {
  if (engine_) (void)engine_->settle();
}

base::Status PackFiles::make_room(bool all) {
  while (all ? engine_->pending() > 0 : is_busy_[slot_]) {
    io::Completion completions[kSlots];
    const auto n = engine_->poll(completions);
    if (!n.ok()) return n.status();
    for (size_t i = 0; i < *n; ++i) {
      is_busy_[completions[i].tag] = false;
      if (failure_.ok()) failure_ = std::move(completions[i].status);
    }
  }
  return failure_;
}

base::Status PackFiles::write(PackFile file, int64_t offset, std::span<const std::byte> bytes) {
  // NOTE: extents share no page, and in one pass each page of an extent is written once; in other files rows that are
  // neighbours may come one after the other, so there each write is waited for.
  OVERLACE_TRY(make_room(file != PackFile::packs || last_ != file));
  last_ = file;
  while (!bytes.empty()) {
    OVERLACE_TRY(make_room(false));
    // From page to page, so that all but the first and the last piece pass the cache by.
    const int64_t most = kSlotBytes - offset % io::kPageBytes;
    const int64_t first = offset % io::kPageBytes == 0 ? most : io::kPageBytes - offset % io::kPageBytes;
    const auto n = static_cast<size_t>(std::min(first, std::ssize(bytes)));
    const std::span<std::byte> copy = ring_.slot(static_cast<int64_t>(slot_)).first(n);
    std::memcpy(copy.data(), bytes.data(), n);
    is_busy_[slot_] = true;
    OVERLACE_TRY(engine_->write(files_[static_cast<size_t>(file)], offset, copy, slot_));
    slot_ = (slot_ + 1) % kSlots;
    offset += static_cast<int64_t>(n);
    bytes = bytes.subspan(n);
  }
  return {};
}

base::Status PackFiles::allocate(const int64_t (&bytes)[3]) {
  for (size_t i = 0; i < files_.size(); ++i) OVERLACE_TRY(files_[i]->allocate(bytes[i]));
  return {};
}

base::Status PackFiles::sync() {
  OVERLACE_TRY(make_room(true));
  for (const auto& file : files_) OVERLACE_TRY(file->sync());
  return {};
}

base::Status PackFiles::finish(const PackResult& packed) {
  OVERLACE_TRY(make_room(true));
  for (size_t i = 0; i < files_.size(); ++i) {
    const auto size = files_[i]->size();
    if (!size.ok()) return size.status();
    if (*size != packed.file_bytes[i])
      return base::error(Errc::corrupt, "{}: {} bytes, wanted {}", files_[i]->path(), *size, packed.file_bytes[i]);
  }
  OVERLACE_TRY(sync());
  for (size_t i = 0; i < files_.size(); ++i) OVERLACE_TRY(give_name(path(directory_, static_cast<PackFile>(i), name_)));
  return {};
}

}  // namespace overlace::gnn
