// Which instruction sets this build holds and this processor runs, and the kernels of each.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace minfer {

// Names of the instruction sets in this build that this processor and system support, best first.
std::vector<std::string> available_isas();

// The kernels compiled for `name`, which must be available.
const Kernels& kernels_for(const std::string& name);

}  // namespace minfer
