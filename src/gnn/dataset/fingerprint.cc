#include "src/gnn/dataset/fingerprint.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "src/base/mapped_file.h"
#include "src/spec/digest.h"

namespace overlace::gnn {
namespace {

constexpr size_t kPages = 64, kPageBytes = 4096;

}  // namespace

base::Status unreadable(const std::string& path, const base::Status& status) {
  const bool is_forbidden = ::access(path.c_str(), R_OK) != 0 && (errno == EACCES || errno == EPERM);
  return base::error(is_forbidden ? Errc::io : Errc::invalid_argument, "{}", status.message());
}

base::Result<std::string> sampled_fingerprint(const std::string& directory, const std::vector<std::string>& files) {
  std::string sample;
  for (const std::string& name : files) {
    const auto file = base::MappedFile::open(directory + "/" + name, base::Reads::scattered);
    if (!file.ok()) return unreadable(directory + "/" + name, file.status());
    const std::string_view bytes((*file)->data(), (*file)->size());
    std::string pages;
    const size_t last = bytes.size() > kPageBytes ? bytes.size() - kPageBytes : 0;
    if (bytes.size() <= kPages * kPageBytes) {
      pages = bytes;
    } else {
      for (size_t i = 0; i < kPages; ++i) pages += bytes.substr(last / (kPages - 1) * i, kPageBytes);
      pages += bytes.substr(last);
    }
    sample += base::format("{} {} {}\n", name, bytes.size(), spec::hash128(pages));
  }
  return spec::hash128(sample);
}

std::string dataset_id(const Description& d) {
  return spec::hash128(base::format("dataset {} {} {} {} {} {} {}", d.sampled, d.num_vertices, d.num_edges,
                                    d.num_classes, dtype_name(d.features.dtype), d.features.dim, d.features.bytes));
}

}  // namespace overlace::gnn
