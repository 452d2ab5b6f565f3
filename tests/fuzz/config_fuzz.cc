// config.json of a checkpoint.
// Sources: src/model/config
#include "src/model/config.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  const base::Result<model::ModelConfig> moe = model::parse_config(input, "config.json", model::Part::moe);
  if (moe.ok()) {
    const model::Experts& experts = moe->experts;
    FUZZ_REQUIRE(moe->hidden > 0 && moe->layers > 0 && moe->expert_layers(moe->layers) == moe->layers);
    FUZZ_REQUIRE(moe->numbers.size() == static_cast<size_t>(moe->layers));
    FUZZ_REQUIRE(experts.count % experts.groups == 0 && experts.kept_groups <= experts.groups);
    FUZZ_REQUIRE(experts.per_token <= experts.count / experts.groups * experts.kept_groups);
  }
  const base::Result<model::ModelConfig> config = model::parse_config(input, "config.json");
  if (!config.ok()) return;
  const model::Experts& experts = config->experts;
  FUZZ_REQUIRE(config->hidden > 0 && config->layers > 0);
  FUZZ_REQUIRE(config->intermediate > 0 || experts.intermediate > 0);
  if (config->has_experts()) {
    FUZZ_REQUIRE(experts.layers.size() == static_cast<size_t>(config->layers));
    FUZZ_REQUIRE(experts.intermediate > 0 && experts.per_token > 0 && experts.per_token <= experts.count);
    FUZZ_REQUIRE(config->intermediate > 0 || config->expert_layers(config->layers) == config->layers);
  }
  FUZZ_REQUIRE(config->kv_heads > 0 && config->heads % config->kv_heads == 0);
  FUZZ_REQUIRE(config->head_dim > 0);
}

}  // namespace overlace::fuzz
