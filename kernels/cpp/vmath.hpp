// Elementary functions as fixed sequences of multiply, add and fused multiply-add on sixteen lanes, so that every
// instruction set gives the same bits. Coefficients are our own weighted least-squares fits (relative error in brackets).
// Included inside the namespace of one instruction set, after the lanes.

// e^x = 2^power (1 + rest), x in [-87, 88]
struct Exponential {
    Ints power;
    Floats rest;
};
inline Exponential exponential(Floats x) {
    const Ints power = round_to_ints(x * splat(1.44269504f));
    const Floats n = to_floats(power);
    Floats r = fma(n, splat(-0.693359375f), x);  // ln 2 in two parts, the first exact in 10 bits
    r = fma(n, splat(2.12194440e-4f), r);
    Floats p = splat(0.001381431838f);  // (3e-9 over |r| <= ln 2 / 2)
    p = fma(p, r, splat(0.008368851279f));
    p = fma(p, r, splat(0.04166840113f));
    p = fma(p, r, splat(0.1666651952f));
    p = fma(p, r, splat(0.4999999337f));
    return {power, fma(p, r * r, r)};
}

// e^x (0.6 ulp or so). Below -87 the result is 0; above 88 that of 88.
inline Floats exp(Floats x) {
    const Floats low = splat(-87.0f);
    const Exponential e = exponential(min(max(x, low), splat(88.0f)));
    const Floats scaled = floats_of(bits_of(e.rest + splat(1.0f)) + shift_left<23>(e.power));
    return where_less(x, low, splat(0.0f), scaled);
}

// Natural logarithm of a positive normal number (1 ulp or so, relative also near 1).
inline Floats log(Floats x) {
    // x = 2^n (1 + t) with 1 + t between sqrt(1/2) and sqrt(2)
    const Ints shifted = bits_of(x) - splat(0x3F3504F3);
    const Ints exponent = shift_right<23>(shifted + splat(0x40000000)) - splat(128);
    const Floats n = to_floats(exponent);
    const Floats t = floats_of(bits_of(x) - shift_left<23>(exponent)) - splat(1.0f);
    Floats p = splat(-0.07622228211f);  // (6e-9)
    p = fma(p, t, splat(0.1276648341f));
    p = fma(p, t, splat(-0.1316681873f));
    p = fma(p, t, splat(0.1420154746f));
    p = fma(p, t, splat(-0.1662270415f));
    p = fma(p, t, splat(0.2000121364f));
    p = fma(p, t, splat(-0.2500083773f));
    p = fma(p, t, splat(0.3333333207f));
    const Floats square = t * t;
    Floats tail = fma(p, t, splat(-0.5f)) * square;  // log(1 + t) - t
    tail = fma(n, splat(-2.12194440e-4f), tail);
    return fma(n, splat(0.693359375f), t + tail);
}

// x * sigmoid(x)
inline Floats silu(Floats x) { return x / (splat(1.0f) + exp(splat(0.0f) - x)); }

// tanh (2 ulp or so, relative also near 0): (e^2x - 1) / (e^2x + 1), from e^2x - 1 as it is. NaN and infinities give NaN.
inline Floats tanh(Floats x) {
    const Exponential e = exponential(min(abs(x) + abs(x), splat(20.0f)));
    const Floats scale = floats_of(shift_left<23>(e.power + splat(127)));
    const Floats above = fma(scale, e.rest, scale - splat(1.0f));
    const Floats value = above / (above + splat(2.0f));
    return where_less(x, splat(0.0f), splat(0.0f) - value, value) + (x - x);
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
inline Floats gelu_tanh(Floats x) {
    const Floats twice = x * fma(x * x, splat(0.0713548163f), splat(1.59576912f));
    return x / (splat(1.0f) + exp(splat(0.0f) - twice));
}

// Scores and logits: they stay within [-cap, cap]. `inverse` is 1 / cap.
inline Floats soft_cap(Floats x, Floats cap, Floats inverse) { return cap * tanh(x * inverse); }
