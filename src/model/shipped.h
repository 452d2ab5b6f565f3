// Configurations that come with the program.
#pragma once

#include <span>
#include <string_view>

namespace overlace::model {

struct ShippedConfig {
  std::string_view name;
  std::string_view json;  // config.json with Hugging Face's keys
};
std::span<const ShippedConfig> shipped_config_data();

}  // namespace overlace::model
