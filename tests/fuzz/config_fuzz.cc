// config.json of a checkpoint.
// Sources: src/model/config
#include "src/model/config.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  const base::Result<model::ModelConfig> config = model::parse_config(input, "config.json");
  if (!config.ok()) return;
  FUZZ_REQUIRE(config->hidden > 0 && config->layers > 0 && config->intermediate > 0);
  FUZZ_REQUIRE(config->kv_heads > 0 && config->heads % config->kv_heads == 0);
  FUZZ_REQUIRE(config->head_dim > 0);
}

}  // namespace overlace::fuzz
