"""The command `foreword`: one file a command. Nothing heavy is imported before a command runs."""
