#include "pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.hpp"

namespace fw {
namespace {

std::uint8_t rounded(float x, float low, float high) { return static_cast<std::uint8_t>(std::clamp(std::nearbyint(x), low, high)); }

float half_to_float(std::uint16_t half) {
    const std::uint32_t magnitude = half & 0x7FFFu;
    float value;
    if (magnitude < 0x400u) {
        value = static_cast<float>(magnitude) * 0x1p-24f;
    } else {
        const std::uint32_t bits = (magnitude << 13) + 0x38000000u;
        std::memcpy(&value, &bits, sizeof value);
    }
    return half & 0x8000u ? -value : value;
}

// To the nearest half, ties to even; beyond its range the largest half.
std::uint16_t float_to_half(float x) {
    const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const float magnitude = std::fabs(x);
    if (magnitude >= 65504.0f) return sign | 0x7BFF;
    if (magnitude < 0x1p-14f) return sign | static_cast<std::uint16_t>(std::nearbyint(magnitude * 0x1p24f));
    std::uint32_t bits;
    std::memcpy(&bits, &magnitude, sizeof bits);
    bits += 0xFFFu + (bits >> 13 & 1u);
    return sign | static_cast<std::uint16_t>((bits - 0x38000000u) >> 13);
}

// Nibbles and half-precision scale and minimum of 32 weights.
struct Quarter {
    std::uint16_t scale, minimum;
    std::uint8_t nibbles[kSubgroup];
};

Quarter quantise_32(const float* weights) {
    const auto [least, most] = std::minmax_element(weights, weights + kSubgroup);
    Quarter out;
    out.minimum = float_to_half(*least);
    const float minimum = half_to_float(out.minimum);
    out.scale = float_to_half((*most - minimum) / 15.0f);
    const float scale = half_to_float(out.scale);
    for (int i = 0; i < kSubgroup; ++i)
        out.nibbles[i] = scale > 0.0f ? rounded((weights[i] - minimum) / scale, 0.0f, 15.0f) : std::uint8_t{0};
    return out;
}

}  // namespace

void pack_int8(const float* weights, std::size_t rows, std::size_t width, std::uint8_t* tiles, float* scales) {
    for (std::size_t row = 0; row < rows; ++row) {
        const float* source = weights + row * width;
        float most = 0.0f;
        for (std::size_t i = 0; i < width; ++i) most = std::max(most, std::fabs(source[i]));
        // A row too small to be divided by is taken as zero.
        const float scale = most > 1e-30f ? most / 127.0f : 0.0f, inverse = most > 1e-30f ? 127.0f / most : 0.0f;
        scales[row] = scale;
        std::uint8_t* tile = tiles + row / kLanes * kLanes * width + row % kLanes * 4;
        for (std::size_t i = 0; i < width; ++i)
            tile[i / 4 * 64 + i % 4] = rounded(std::nearbyint(source[i] * inverse) + 128.0f, 1.0f, 255.0f);
    }
}

void pack_int4(const float* weights, std::size_t rows, std::size_t width, std::uint8_t* tiles, std::uint16_t* scales) {
    std::memset(tiles, 0, rows * width / 2);
    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t begin = 0; begin < width; begin += kSubgroup) {
            const Quarter quarter = quantise_32(weights + row * width + begin);
            const std::size_t lane = row % kLanes;
            std::uint16_t* pair = scales + (row / kLanes * (width / kSubgroup) + begin / kSubgroup) * 2 * kLanes;
            pair[lane] = quarter.scale;
            pair[kLanes + lane] = quarter.minimum;
            std::uint8_t* group = tiles + row / kLanes * kLanes * width / 2 + begin / kGroup * (kGroup * kLanes / 2) + lane * 4;
            const int shift = begin % kGroup == 0 ? 0 : 4;
            for (std::size_t i = 0; i < kSubgroup; ++i)
                group[i / 4 * 64 + i % 4] |= static_cast<std::uint8_t>(quarter.nibbles[i] << shift);
        }
}

}  // namespace fw
