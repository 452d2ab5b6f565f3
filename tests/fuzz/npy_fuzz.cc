// Arrays as .npy: hidden states, any array, and its header alone.
// Sources: src/base/npy src/base/mapped_file src/model/npy
#include "src/base/npy.h"
#include "src/model/npy.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  static ScratchFile file;
  file.write(input);
  const base::Result<model::NpyMatrix> matrix = model::read_npy(file.path());
  if (matrix.ok()) FUZZ_REQUIRE(matrix->values.size() == static_cast<size_t>(matrix->rows * matrix->cols));
  const base::Result<base::NpyFile> array = base::NpyFile::open(file.path());
  if (array.ok())
    FUZZ_REQUIRE(array->array().bytes() + array->array().data_offset == static_cast<int64_t>(input.size()));
  (void)base::parse_npy_header(input, "header");
}

}  // namespace overlace::fuzz
