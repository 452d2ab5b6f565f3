// A checkpoint's index beside one good file: no tensor comes from outside the directory.
// Sources: src/model/safetensors src/base/mapped_file
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "src/model/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {
namespace {

/// A temporary directory with a file "m" that holds the tensor "a", 2 x 2 of F32; goes at exit.
class Directory {
 public:
  Directory() {
    char name[] = "/dev/shm/overlace_fuzz_XXXXXX";
    FUZZ_REQUIRE(::mkdtemp(name) != nullptr);
    path_ = name;
    const std::string header = R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
    write("m",
          std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + std::string(16, '\0'));
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

void run(std::string_view input) {
  static const Directory directory;
  directory.write("model.safetensors.index.json", input);
  base::Result<model::Checkpoint> checkpoint = model::Checkpoint::open(directory.path());
  if (!checkpoint.ok()) return;
  float values[4] = {1, 1, 1, 1};
  const base::Status read = checkpoint->read("a", {2, 2}, {.rows = 2, .cols = 2}, DType::fp32, values);
  if (read.ok()) FUZZ_REQUIRE(checkpoint->has("a") && values[0] == 0 && values[3] == 0);
}

}  // namespace overlace::fuzz
