// Hidden states as .npy: the whole file, and its header alone.
// Sources: src/model/npy src/model/file
#include "src/model/npy.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  static ScratchFile file;
  file.write(input);
  const base::Result<model::NpyMatrix> matrix = model::read_npy(file.path());
  if (matrix.ok()) FUZZ_REQUIRE(matrix->values.size() == static_cast<size_t>(matrix->rows * matrix->cols));
  (void)model::parse_npy_header(input, "header");
}

}  // namespace overlace::fuzz
