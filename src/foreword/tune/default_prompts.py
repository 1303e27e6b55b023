"""What `foreword tune` asks where no file is given: short questions of different kinds.

How much drafting gains depends on the text more than on anything else: one's own prompts say more than these.
"""

PROMPTS = {
    "explain": "Explain to a child why the moon has phases.",
    "write": "Write a short letter to a neighbour who helped you move a piano.",
    "code": "Write a Python function that finds the two largest numbers in a list, and show three calls with their results.",
    "rewrite": (
        "Correct the spelling and change nothing else:\n\nThe comittee recieved twelve letters last weak. Most of the letters were "
        "about the new bridge. The comittee will anser the letters about the new bridge on Friday."
    ),
    "extract": (
        "List the names and ages in this text, a line each:\n\nAda, who is 36, met Grace, who is 85, in the library. Alan, 41, came "
        "later with Edsger, who is 72."
    ),
    "reckon": "A baker sells 14 loaves an hour for 3 dollars each and is open from 7 to 12. How much does he earn? Think step by step.",
    "list": "Give ten tips for growing tomatoes on a balcony, a sentence each.",
    "summarise": (
        "Summarise in two sentences: The tide is the rise and fall of the sea. It is caused by the pull of the moon and the sun. When both "
        "pull in one line, the tide is highest. When they pull at a right angle, the tide is lowest."
    ),
}
