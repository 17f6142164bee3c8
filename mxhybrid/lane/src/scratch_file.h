// A file for the rows of a row store.
#pragma once

#include <string>

namespace lane {

/// Return the descriptor of a new, empty file in a directory, which the caller closes; throws std::runtime_error.
/// The file has lost its name, so it disappears with the process, however that ends.  `role` is a part of the former
/// name, which the system shows in /proc.
int new_scratch_file(const std::string& directory, const std::string& role);

}  // namespace lane
