"""foreword inside other engines."""
