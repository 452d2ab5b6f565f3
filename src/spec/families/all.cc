// The operators of the library. A new one is a line here and its own file.
#include "src/spec/families/families.h"

namespace overlace::spec {

std::span<const OperatorDef* const> built_in_operators() {
  static constexpr const OperatorDef* kAll[] = {&kAgGemm,     &kAgWgrad, &kGemmRs,  &kGemmAr,
                                                &kGemmArNorm, &kGemmA2a, &kA2aGemm, &kEmbeddingA2a};
  return kAll;
}

}  // namespace overlace::spec
