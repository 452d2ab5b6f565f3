// A safetensors file: a header that passes lets all bytes of all its tensors be read.
// Sources: src/model/safetensors src/base/mapped_file
#include "src/model/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  static ScratchFile file;
  file.write(input);
  const base::Result<model::SafetensorsFile> opened = model::SafetensorsFile::open(file.path());
  if (!opened.ok()) return;
  const model::StoredTensor* tensor = opened->find("a");
  if (tensor == nullptr) return;
  const std::string copy(opened->bytes(*tensor), tensor->end - tensor->begin);
  FUZZ_REQUIRE(copy.size() <= input.size());
}

}  // namespace overlace::fuzz
