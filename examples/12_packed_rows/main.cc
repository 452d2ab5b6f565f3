// Rows of a graph's features that lie on a disk: batches are sampled first, their rows packed in the order of use, and
// each rank reads its share ahead of the loop. Every row is compared with the file of features.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/error.h"
#include "overlace/gnn.h"

namespace gnn = overlace::gnn;

constexpr int64_t kVertices = 4096, kDim = 24, kRowBytes = kDim * 4, kEpochs = 2;

/// What `overlace gnn generate`, `sample` and `pack` do.
void prepare(const std::string& folder, int ranks) {
  gnn::make_dataset({.num_vertices = kVertices, .dim = kDim, .seed = 3}, folder + "/g");
  gnn::SampleRequest samples;
  samples.sampler.fanouts = {5, 5};
  samples.sampler.batch_size = 32;
  gnn::make_samples(folder + "/g", folder + "/g.ovg", samples);
  gnn::ArtefactPackRequest packs;
  packs.cpu_bytes = kVertices / 10 * kRowBytes;
  packs.ranks = ranks;
  gnn::make_packs(folder + "/g", folder + "/g.ovg", packs);
  gnn::verify(folder + "/g.ovg", folder + "/g");
}

/// The matrix at the end of features.npy.
std::vector<std::byte> features(const std::string& folder) {
  std::vector<std::byte> out(kVertices * kRowBytes);
  std::ifstream file(folder + "/g/features.npy", std::ios::binary);
  file.seekg(-static_cast<std::streamoff>(out.size()), std::ios::end);
  file.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  if (!file) overlace::throw_error(overlace::Errc::io, folder + ": no features");
  return out;
}

/// Rows that are not those of the dataset.
int64_t train(gnn::PackedLoader& loader, const std::vector<std::byte>& wanted) {
  int64_t wrong = 0;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    loader.start(epoch);
    while (const auto batch = loader.next()) {
      // A model takes batch->rows, batch->edges and batch->classes here, while the next batches are read.
      for (size_t i = 0; i < batch->ids.size(); ++i) {
        const std::byte* row = wanted.data() + batch->ids[i] * kRowBytes;
        wrong += std::memcmp(batch->rows.data() + i * kRowBytes, row, kRowBytes) != 0;
      }
      loader.release();
    }
  }
  return wrong;
}

int main() try {
  const auto bootstrap = overlace::environment_bootstrap();
  const int rank = bootstrap->rank(), size = bootstrap->size();
  std::string folder = (std::filesystem::temp_directory_path() / "packed_rows.").string() + std::to_string(::getpid());
  if (rank == 0) prepare(folder, size);
  const overlace::Bytes of_first = bootstrap->allgather(std::as_bytes(std::span(folder)), 10'000)[0];
  folder.assign(reinterpret_cast<const char*>(of_first.data()), of_first.size());

  gnn::PackedLoader loader(folder + "/g.ovg", {.rank = rank, .ranks = size});
  const int64_t wrong = train(loader, features(folder));
  const gnn::LoaderStats stats = loader.stats();
  std::printf("rank %d of %d: %ld batches an epoch, %ld rows from memory, %ld from the disk, %ld are wrong\n", rank,
              size, static_cast<long>(loader.num_batches()), static_cast<long>(stats.cpu_rows),
              static_cast<long>(stats.ring_rows), static_cast<long>(wrong));

  bootstrap->barrier(10'000);  // nobody reads the files any more
  if (rank == 0) std::filesystem::remove_all(folder);
  return wrong == 0 && stats.cpu_rows > 0 && stats.ring_rows > 0 ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
