"""Trained drafters of foreword for its default model: data only. `foreword` finds them by the model's fingerprint."""
