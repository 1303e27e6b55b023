// Float weights to packed integers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fw {

// `weights` is [rows][width], rows a multiple of 16, width of 64. int8, one scale an output:
// tiles [row / 16][width / 4][16][4] of round(w / scale) + 128, scale = largest magnitude / 127.
void pack_int8(const float* weights, std::size_t rows, std::size_t width, std::uint8_t* tiles, float* scales);

// int4, a scale and a minimum for every 32 inputs of an output, half precision: w = scale * nibble + minimum.
// tiles [row / 16][width / 64][8][16][4] bytes: low nibbles are the first 32 inputs of 64, high ones the others;
// scales [row / 16][width / 32][scale, minimum][16].
void pack_int4(const float* weights, std::size_t rows, std::size_t width, std::uint8_t* tiles, std::uint16_t* scales);

}  // namespace fw
