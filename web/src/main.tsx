import { render } from "preact";
import { App } from "./app";
import { Store } from "./store";
import "./style/base.css";
import "./style/layout.css";
import "./style/header.css";
import "./style/list.css";
import "./style/panel.css";
import "./style/run.css";
import "./style/operations.css";
import "./style/manage.css";
import "./style/search.css";
import "./style/charts.css";

const store = new Store();
render(<App store={store} />, document.getElementById("page")!);
store.run();
