import js from "@eslint/js";
import globals from "globals";

export default [
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
  js.configs.recommended,
  {
    files: ["src/**"],
    languageOptions: { globals: { ...globals.browser, uPlot: "readonly" } },
    rules: {
      eqeqeq: "error",
      "no-control-regex": "off", // dom.js looks for control characters
      "no-var": "error",
      "prefer-const": "error",
      // Text of a run must never become markup.
      "no-restricted-properties": [
        "error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML"].map((property) => ({ property })),
      ],
      "no-restricted-syntax": [
        "error",
        { selector: ":matches(Program, Program > *) > [kind='let']", message: "state belongs in state.js" },
      ],
    },
  },
  { files: ["*.js", "tests/**"], languageOptions: { globals: globals.node } },
];
