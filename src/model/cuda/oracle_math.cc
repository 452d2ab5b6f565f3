#include "src/model/oracle_math.h"

namespace overlace::model {

base::Result<std::unique_ptr<OracleMath>> make_cuda_oracle_math(int device) {
  return base::error(Errc::not_supported, "the fp64 oracle on device {} is not available", device);
}

}  // namespace overlace::model
